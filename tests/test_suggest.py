"""`Tuner.suggest`: what it finds, and that it leaves no trace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.trees import norm
from pactune.tuning.suggestion import HyperScale

ROWS = 12


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def draw(generator: torch.Generator) -> Any:
    x = torch.randn(10, 4, generator=generator)
    y = torch.randint(0, 3, (10,), generator=generator)
    return (x[:5], y[:5]), (x[5:], y[5:])


def made(
    *, data: Any = None, norm_layer: bool = False, lr: float = 0.1, optim: Any = torch.optim.SGD, **settings: Any
) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)) if norm_layer else nn.Linear(4, 3)
    hyper = nn.ModuleDict({"decay": pt.WeightDecay(model, init=settings.pop("init", 0.0))})
    given = data or {"train": rows(ROWS, 1), "valid": rows(10, 2), "batch_size": 6}
    if "tasks" not in given:
        hyper["weights"] = pt.ExampleWeights(len(given.get("data", given.get("train"))[0]))
    problem = pt.Problem(model, hyper, loss=cross_entropy, **given)
    chosen = {"inner": pt.SGD(lr=0.1), "inner_steps": 3, "objective": pt.PACBayes(0.1), **settings}
    return pt.Tuner(problem, outer=optim(hyper.parameters(), lr=lr), **chosen)


VARIANTS: dict[str, dict[str, Any]] = {
    "one problem": {},
    "BatchNorm": {"norm_layer": True},
    "online": {"online": True, "inner": pt.Adam(0.01), "optim": torch.optim.RMSprop},
    "chains, restart, noise": {"chains": 2, "restart": True, "inner": pt.Langevin(0.1, 50.0)},
    "folds": {"data": {"data": rows(12, 1), "folds": 3}},
    "drawn tasks": {"data": {"tasks": draw, "tasks_per_step": 2}, "restart": True},
}


def state(tuner: Any) -> dict[str, Any]:
    """Return everything that `suggest` must leave alone."""
    problem = tuner.problem
    return {
        "params": copy.deepcopy(problem.parameters()),
        "buffers": copy.deepcopy(problem.buffers()),
        "hyper": copy.deepcopy(problem.hyperparameters()),
        "grads": {name: copy.deepcopy(p.grad) for name, p in problem.hyper.named_parameters()},
        "model grads": {name: copy.deepcopy(p.grad) for name, p in problem.model.named_parameters()},
        "outer": copy.deepcopy(tuner.outer.state_dict()),
        "modes": {name: module.training for name, module in problem.model.named_modules()},
        "generator": torch.get_rng_state(),
    }


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("fits", [0, 2])
@pytest.mark.parametrize("name", VARIANTS)
def test_it_leaves_no_trace(name: str, fits: int) -> None:
    tuners = [made(**VARIANTS[name]) for _ in range(2)]
    for tuner in tuners if fits else []:
        tuner.fit(fits, progress=False)
    before = state(tuners[0])
    first, second = tuners[0].suggest(), tuners[0].suggest()
    assert first == second
    after = state(tuners[0])
    assert not [part for part in before if not equal(before[part], after[part])]
    histories = [tuner.fit(2, progress=False).history.drop(columns="seconds") for tuner in tuners]
    assert histories[0].equals(histories[1])


def test_a_model_that_changes_after_it_is_the_start_of_the_run() -> None:
    tuners = [made() for _ in range(2)]
    tuners[0].suggest()
    for tuner in tuners:
        with torch.no_grad():
            tuner.problem.model.weight.mul_(3)
    risks = [tuner.fit(1, progress=False).rows[0]["risk"] for tuner in tuners]
    assert risks[0] == risks[1]


def test_the_gradients_are_those_of_the_first_round() -> None:
    """J's gradient is that of the risk plus ζ times that of the regularizer, so two ζ give both."""
    found = made().suggest()
    assert [scale.name for scale in found.scales] == ["decay", "weights"]
    gradients = []
    for zeta in (0.0, 1.0):
        tuner = made(objective=pt.PACBayes(zeta))
        tuner.hypergradient()
        gradients.append({name: p.grad for name, p in tuner.problem.hyper.named_parameters()})
    risk, path = gradients[0], {name: gradients[1][name] - value for name, value in gradients[0].items()}
    decay = [{name: tree[name] for name in tree if name.startswith("decay.")} for tree in (risk, path)]
    assert found.scales[0].risk_norm == pytest.approx(float(norm(decay[0])), rel=1e-5)
    assert found.scales[0].path_norm == pytest.approx(float(norm(decay[1])), rel=1e-4)
    assert found.balance == pytest.approx(float(norm(risk) / norm(path)), rel=1e-4)
    assert found.zeta == 0.1


@pytest.mark.parametrize("optim", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adam])
def test_the_suggested_rate_moves_by_a_tenth(optim: Any) -> None:
    (scale, _) = made(optim=optim).suggest().scales
    tuner = made(optim=optim, lr=scale.suggested_lr)
    again = tuner.suggest().scales[0]
    assert again.move == pytest.approx(0.1, rel=1e-3)
    tuner.hypergradient()
    tuner.outer.step()
    moved = torch.cat([p.detach().flatten() for p in tuner.problem.hyper["decay"].parameters()])
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.1 * scale.scale, rel=1e-3)


def test_the_scale_of_a_decay_is_that_of_the_whole_run() -> None:
    """With η = 0.1, T = 3 and 20 outer steps a decay of 1/6 shrinks θ by a factor e; a larger λ has its own size."""
    tuner = made()
    assert tuner.suggest(outer_steps=20).scales[0].scale == pytest.approx(1 / 6)
    assert tuner.suggest(outer_steps=40).scales[0].scale == pytest.approx(1 / 12)
    assert tuner.suggest().scales[1].scale == pytest.approx(1.0)
    assert made(restart=True).suggest(outer_steps=40).scales[0].scale == pytest.approx(1 / 0.3)
    assert made(init=2.0).suggest(outer_steps=20).scales[0].scale == pytest.approx(2.0)


def test_parameter_groups_have_their_own_rates() -> None:
    base = made()
    hyper = base.problem.hyper
    groups = [{"params": hyper["decay"].parameters(), "lr": 0.5}, {"params": hyper["weights"].parameters()}]
    outer = torch.optim.SGD(groups, lr=0.01)
    tuner = pt.Tuner(base.problem, inner=base.inner, inner_steps=3, outer=outer, objective=base.objective)
    assert {scale.name: scale.lr for scale in tuner.suggest().scales} == {"decay": 0.5, "weights": 0.01}


@pytest.mark.parametrize("objective", [pt.ValidationRisk(), pt.HyperDrift(0.1)], ids=str)
def test_without_a_second_gradient_there_is_no_balance(objective: Any) -> None:
    found = made(objective=objective).suggest()
    assert found.balance is None
    assert found.scales[0].path_norm == 0
    assert "one of them is 0" in str(found)


def test_zeta_auto_has_no_present_zeta() -> None:
    found = made(objective=pt.PACBayes("auto")).suggest()
    assert found.zeta is None
    assert found.balance is not None


class NeedsClosure(torch.optim.SGD):
    """An optimizer that cannot step by a gradient alone."""

    def step(self, closure: Any) -> Any:
        return super().step(closure)


def test_an_optimizer_with_a_closure_gets_no_rate() -> None:
    scales = made(optim=NeedsClosure).suggest().scales
    assert scales[0].suggested_lr is None
    assert "does not move them" in str(scales[0])


ADVICE = {1e-6: "hardly moves", 0.3: "a fair distance", 10.0: "falls fast", 1e4: "it rises"}


@pytest.mark.parametrize("lr", ADVICE)
def test_the_advice_on_inner_steps(lr: float) -> None:
    """Rows that a linear model separates, except at a rate that overshoots."""
    x, y = torch.eye(4).repeat(3, 1), torch.arange(12) % 4 % 3
    if lr > 100:
        x, y = rows(ROWS, 1)
    found = made(data={"train": (x, y), "valid": (x, y)}, inner=pt.SGD(lr)).suggest()
    assert ADVICE[lr] in found.advice
    assert ADVICE[lr] in str(found)


def test_it_reads_well() -> None:
    text = str(made().suggest())
    assert text.startswith("both gradients of J: they are equally long at ζ = ")
    assert "decay (15 numbers of scale 0.033)" in text
    assert "inner_steps=3: the risk goes from " in text
    assert len(text.splitlines()) == 8
    assert isinstance(made().suggest().scales[0], HyperScale)


def test_wrong_arguments() -> None:
    with pytest.raises(pt.SettingError, match="`outer_steps` must be a whole number ≥ 1"):
        made().suggest(outer_steps=0)
