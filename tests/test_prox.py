"""The lasso, the weighted lasso and the elastic net against closed forms, and the rules of a prox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.trees import Params
from tests import lasso_reference as reference

DATA = reference.Regression.draw(30, 12, seed=3)
ALPHA, RIDGE, STEPS = 0.15, 0.05, 4000
LR = 0.9 / float(2 * np.linalg.eigvalsh(DATA.hessian).max())  # F.mse_loss is twice the reference's training risk
MODELS = ("lasso", "weighted lasso", "elastic net")


def linear(data: reference.Regression) -> nn.Module:
    model = nn.Linear(data.x.shape[1], 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    return model


def hyper_of(name: str, model: nn.Module) -> nn.Module:
    l1 = pt.L1(model, per="element" if name == "weighted lasso" else "global", init=2 * ALPHA)
    if name == "weighted lasso":
        with torch.no_grad():
            l1.values["weight"] += torch.linspace(-0.5, 0.5, 12, dtype=torch.float64)
    if name != "elastic net":
        return l1
    return nn.ModuleDict({"l1": l1, "decay": pt.WeightDecay(model, per="global", init=2 * RIDGE)})


def alphas(name: str) -> np.ndarray:
    return ALPHA * np.exp(np.linspace(-0.5, 0.5, 12)) if name == "weighted lasso" else np.full(12, ALPHA)


def ridge(name: str) -> float:
    return RIDGE if name == "elastic net" else 0.0


def pairs(data: reference.Regression) -> dict[str, Any]:
    tensors = [torch.from_numpy(part) for part in data]
    return {"train": (tensors[0], tensors[1][:, None]), "valid": (tensors[2], tensors[3][:, None])}


def tuner(name: str, steps: int, hypergradient: Any, inner: Any = None, **settings: Any) -> pt.Tuner:
    model = settings.pop("model", None) or linear(DATA)
    hyper = settings.pop("hyper", None) or hyper_of(name, model)
    problem = pt.Problem(model, hyper, **settings.pop("data", pairs(DATA)), loss=F.mse_loss)
    settings = {"objective": pt.ValidationRisk()} | settings
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    inner = inner or pt.SGD(LR)
    return pt.Tuner(problem, inner=inner, inner_steps=steps, outer=outer, hypergradient=hypergradient, **settings)


def check(name: str, own: pt.Tuner, wanted: reference.Derivatives, rtol: float) -> None:
    """Compare risk and gradients, with respect to log α and log ρ."""
    assert own.hypergradient().risk == pytest.approx(wanted.value, rel=rtol)
    found = {key: p.grad for key, p in own.problem.hyper.named_parameters()}
    by_alpha = wanted.by_log_alpha if name == "weighted lasso" else wanted.by_log_alpha.sum()
    slope = next(value for key, value in found.items() if "decay" not in key)
    assert np.abs(by_alpha).max() > 1e-2
    np.testing.assert_allclose(slope.numpy().squeeze(), by_alpha, rtol=rtol, atol=rtol * 0.1)
    if name == "elastic net":
        assert float(found["decay.values.all"]) * 2 * RIDGE == pytest.approx(wanted.by_log_ridge, rel=rtol)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("estimator", [pt.Truncated(40), pt.Windowed(40), pt.ForwardMode()], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_unrolled_gradients_are_those_of_the_explicit_jacobian(name: str, estimator: Any, momentum: float) -> None:
    wanted = reference.forward(DATA, alphas(name), ridge(name), 2 * LR, momentum, 40)
    check(name, tuner(name, 40, estimator, pt.SGD(LR, momentum=momentum)), wanted, 1e-10)


@pytest.mark.parametrize("solver", [pt.ConjugateGradient(40), pt.Neumann(3000)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_implicit_gradients_are_those_of_the_optimality_condition(name: str, solver: Any) -> None:
    wanted = reference.implicit(DATA, alphas(name), ridge(name))
    check(name, tuner(name, STEPS, pt.Implicit(solver)), wanted, 1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_a_running_solution_stays_on_the_support(name: str) -> None:
    wanted = reference.implicit(DATA, alphas(name), ridge(name))
    check(name, tuner(name, STEPS, pt.RunningImplicit(steps=3000)), wanted, 1e-8)


def test_a_warm_start_from_another_support_is_restricted() -> None:
    wanted = reference.implicit(DATA, alphas("lasso"), 0.0)
    own = tuner("lasso", STEPS, pt.Implicit(pt.Neumann(3000), warm_start=True))
    with torch.no_grad():
        start = next(own.problem.hyper.parameters()).clone()
        next(own.problem.hyper.parameters()).sub_(3.0)  # a smaller penalty has a larger support
    own.hypergradient()
    with torch.no_grad():
        next(own.problem.hyper.parameters()).copy_(start)
    check("lasso", own, wanted, 1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_long_unrolling_equals_implicit_differentiation(name: str) -> None:
    wanted = reference.implicit(DATA, alphas(name), ridge(name))
    check(name, tuner(name, 800, pt.Windowed(800), pt.SGD(LR, momentum=0.8)), wanted, 1e-8)


STORED = json.loads((Path(__file__).parents[1] / "benchmarks/results/lasso-peers.json").read_text(encoding="utf-8"))
LONG = {"implicit": pt.Implicit(pt.ConjugateGradient(40)), "unrolled": pt.Windowed(150), "forward": pt.ForwardMode()}


@pytest.mark.slow
@pytest.mark.parametrize("row", STORED["gradients"], ids=lambda row: f"{row['model']}-{row['way']}")
def test_gradients_equal_those_of_sparse_ho(row: dict[str, Any]) -> None:
    """`benchmarks/lasso_peers.py` stores what sparse-ho finds on this problem, with respect to log α and log ρ."""
    log_alpha, model = row["log_alpha"], linear(DATA)
    first = np.log(2) + np.array(log_alpha if row["model"] == "weighted lasso" else log_alpha[0])
    l1 = pt.L1(model, per="element" if row["model"] == "weighted lasso" else "global")
    with torch.no_grad():
        next(iter(l1.parameters())).copy_(torch.tensor(first))
    decay = pt.WeightDecay(model, per="global", init=2 * np.exp(log_alpha[-1]))
    hyper = nn.ModuleDict({"l1": l1, "decay": decay}) if row["model"] == "elastic net" else l1
    tuner("", 150, LONG[row["way"]], pt.SGD(LR, momentum=0.8), hyper=hyper, model=model).hypergradient()
    found = [next(iter(l1.parameters())).grad.flatten()]
    found += [(decay.values["all"] * decay.values["all"].grad).detach()[None]] if row["model"] == "elastic net" else []
    np.testing.assert_allclose(torch.cat(found).numpy(), row["gradient"], rtol=1e-6, atol=1e-7)
    assert np.abs(row["gradient"]).max() > 0.01


INNERS = {
    "momentum": pt.SGD(LR, momentum=0.9),
    "nesterov": pt.SGD(LR, momentum=0.9, nesterov=True),
    "adam": pt.Adam(lambda t: 0.02 if t < 2000 else 0.02 * 0.98 ** ((t - 2000) / 10), decoupled=False),
}


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("name", ["lasso", "elastic net"])
def test_every_dynamics_stops_at_the_minimum_with_its_zeros(name: str, inner: str) -> None:
    own = tuner(name, STEPS, pt.Truncated(1), INNERS[inner])
    own.fit(outer_steps=1)
    wanted = reference.solve(DATA, alphas(name), ridge(name))
    found = own.problem.model.weight.detach().numpy().squeeze()
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert 0 < (wanted == 0).sum() < 12
    np.testing.assert_array_equal(found == 0, wanted == 0)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [pt.ConjugateGradient(40), pt.Neumann(5), pt.Identity()], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_check_stays_on_one_support(name: str, solver: Any) -> None:
    found = pt.check_hypergradient(tuner(name, 500, pt.Implicit(solver)), directions=2)
    assert found.passed
    assert found.stationary_distance < 1e-6


def test_the_regularizer_sees_the_sign_of_a_weight() -> None:
    """With one step and q = ‖g + λ sign(w)‖², d√q/dlog λ = ⟨g + λ sign(w), λ sign(w)⟩/√q, where sign(0) = 0."""
    w = np.linspace(-1, 1, 12)
    w[3] = 0
    slopes = []
    for objective in (pt.Flatness(1.0), pt.ValidationRisk()):
        model = linear(DATA)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(w))
        own = tuner("lasso", 1, pt.Truncated(1), pt.SGD(1e-3), objective=objective, model=model)
        own.hypergradient()
        slopes.append(float(own.problem.hyper.values["all"].grad))
    g, sign = 2 * DATA.x.T @ (DATA.x @ w - DATA.y) / len(DATA.y), 2 * ALPHA * np.sign(w)
    assert slopes[0] - slopes[1] == pytest.approx(sign @ (g + sign) / np.linalg.norm(g + sign), rel=1e-8)


def test_a_step_size_of_zero_leaves_a_finite_regularizer() -> None:
    inner = pt.SGD(lambda t: 0.0 if t == 1 else LR)
    own = tuner("lasso", 3, pt.Truncated(1), inner, objective=pt.PACBayes(0.1), path_hypergradient=pt.Truncated(2))
    assert np.isfinite(own.hypergradient().regularizer)
    assert bool(own.problem.hyper.values["all"].grad.isfinite())


class Groups(nn.Module):
    """The penalty λ‖θ‖ of a whole tensor, whose prox shrinks all its elements together."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(-2.0, dtype=torch.float64))

    def prox(self, params: Params, step_sizes: Any) -> Params:
        return {name: p * (1 - step_sizes[name] * self.log.exp() / p.norm()).clamp_min(0) for name, p in params.items()}


def test_a_prox_of_groups_unrolls_and_is_refused_by_implicit() -> None:
    model = linear(DATA)
    nn.init.ones_(model.weight)
    unrolled = tuner("groups", 5, pt.Windowed(5), hyper=Groups(), model=model)
    assert pt.check_hypergradient(unrolled, directions=1).passed
    with pytest.raises(pt.GradientError, match="prox"):
        tuner("groups", 200, pt.Implicit(pt.ConjugateGradient(20)), hyper=Groups()).hypergradient()


@pytest.mark.parametrize("inner", [pt.Langevin(0.1, 10.0), pt.TorchOptim(lambda p: torch.optim.SGD(p, lr=0.1))])
def test_other_dynamics_refuse_a_prox(inner: Any) -> None:
    with pytest.raises(pt.SettingError, match="needs SGD or Adam"):
        tuner("lasso", 3, pt.Truncated(1), inner)


def test_a_value_gap_refuses_a_prox() -> None:
    with pytest.raises(pt.SettingError, match="needs a smooth training risk"):
        tuner("lasso", 3, pt.ValueFunctionGap(100.0, 5))


class Wrong(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.value, self.result = nn.Parameter(torch.ones(1, dtype=torch.float64)), result

    def prox(self, params: Params, step_sizes: Any) -> Any:
        return self.result


@pytest.mark.parametrize("result", [None, {"weight": torch.zeros(3)}, {"other": torch.zeros(1, 12)}, 3.0])
def test_a_wrong_prox_is_named_before_training(result: Any) -> None:
    with pytest.raises(pt.SettingError, match="`prox` of Wrong must return"):
        tuner("lasso", 3, pt.Truncated(1), hyper=Wrong(result)).hypergradient()


def test_a_parameter_without_value_is_not_penalised() -> None:
    model = nn.Linear(3, 1)
    l1 = pt.L1(model, per="tensor", init=0.5)
    del l1.values["bias"]
    params = dict(model.named_parameters())
    assert set(l1.prox(params, dict.fromkeys(params, 1.0))) == {"weight"}
    assert l1.value(params).item() == pytest.approx(0.5 * model.weight.abs().sum().item())


@pytest.mark.parametrize("init", [0.0, -1.0, float("nan")])
def test_the_strength_must_be_positive(init: float) -> None:
    with pytest.raises(pt.SettingError, match="`init`"):
        pt.L1(nn.Linear(2, 1), init=init)


def adam_tuner(zeta: float, init: float, engine: str = "auto") -> pt.Tuner:
    model = linear(DATA)
    nn.init.constant_(model.weight, 0.5)
    hyper = pt.L1(model, per="element", init=init)
    settings: dict[str, Any] = {"objective": pt.PACBayes(zeta), "path_hypergradient": pt.Truncated(0)}
    inner = pt.Adam(0.05, eps=1e-3)
    return tuner("", 25, pt.Truncated(3), inner, hyper=hyper, model=model, engine=engine, seed=1, **settings)


def strengths_after(own: pt.Tuner, **settings: Any) -> Tensor:
    own.fit(3, progress=False, **settings)
    return own.problem.hyper.values["weight"].detach().clone()


def test_every_engine_and_a_grid_have_the_same_steps() -> None:
    eager, traced = (strengths_after(adam_tuner(0.05, 0.1, engine)) for engine in ("eager", "traced"))
    assert torch.equal(eager, traced)
    assert not torch.allclose(eager, torch.full_like(eager, float(np.log(0.1))), atol=1e-3)
    assert bool((adam_tuner(0.05, 0.1).fit(1, progress=False).model.weight == 0).any())
    cells = {"zeta": [0.05], "init": [0.1, 0.2]}
    grid = pt.fit_grid(lambda **cell: adam_tuner(**cell, engine="traced"), cells, outer_steps=3, progress=False)
    alone = [adam_tuner(0.05, init).fit(3, progress=False).history["objective"] for init in cells["init"]]
    for init, wanted in zip(cells["init"], alone, strict=True):
        found = grid.history[grid.history["init"] == init]["objective"]
        np.testing.assert_allclose(found.to_numpy(), wanted.to_numpy(), rtol=1e-9)


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole = adam_tuner(0.05, 0.1).fit(4, progress=False).history["objective"]
    adam_tuner(0.05, 0.1).fit(2, run_dir=tmp_path / "run", progress=False)
    rest = adam_tuner(0.05, 0.1).fit(4, run_dir=tmp_path / "run", resume=True, progress=False).history["objective"]
    assert rest.tolist() == whole.tolist()


def test_two_l1_penalties_add_up() -> None:
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    parts = {"a": pt.L1(model, per="global", init=0.1), "b": pt.L1(model, per="tensor", init=0.3)}
    rows = {"train": (torch.zeros(2, 3).double(), torch.zeros(2, 1).double())}
    problem = pt.Problem(model, nn.ModuleDict(parts), **rows, valid=rows["train"], loss=F.mse_loss)
    start = {"weight": torch.tensor([[1.0, -0.35, -2.0]], dtype=torch.float64)}
    found = problem.prox(start, {"weight": 1.0}, problem.hyperparameters())["weight"]
    torch.testing.assert_close(found.detach(), torch.tensor([[0.6, 0.0, -1.6]], dtype=torch.float64))
