"""The regularizer from Σ_t θ_t² equals the sum of its summands, step by step, wherever the short form is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.engines import Traced
from pactune.trees import Params

T = 12


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def two_decays(model: nn.Module) -> nn.Module:
    return nn.ModuleDict({"each": pt.WeightDecay(model, init=0.2), "all": pt.WeightDecay(model, per="global")})


class Ridge(nn.Module):
    """A module of a user: a decay exp(λ) of the weights of the last layer."""

    diagonal = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((), -1.0, dtype=next(model.parameters()).dtype))

    def penalty(self, params: Params) -> Tensor:
        return 0.5 * self.log.exp() * params["2.weight"].square().sum()

    def penalty_gradient(self, params: Params) -> Params:
        return {"2.weight": self.log.exp() * params["2.weight"]}

    def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
        return {"log": self.log.exp() * (params["2.weight"] * cotangent["2.weight"]).sum()}


class Cubic(pt.WeightDecay):
    """A decay whose penalty is no longer quadratic."""

    def penalty_gradient(self, params: Params) -> Params:
        return {name: value * params[name].abs() for name, value in super().penalty_gradient(params).items()}


def tuner(hyper: Callable[[nn.Module], nn.Module] = pt.WeightDecay, **changes: Any) -> pt.Tuner:
    torch.manual_seed(changes.get("seed", 0))
    model = changes.pop("model", network)().double()
    lambdas = hyper(model)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 5, generator=draw).double(), torch.randint(0, 3, (40,), generator=draw)
    split = {"data": (x, y), "folds": changes.pop("folds")} if "folds" in changes else {}
    data = split or {"train": (x[:20], y[:20]), "valid": (x[20:], y[20:])}
    problem = pt.Problem(model, lambdas, loss=cross_entropy, batch_size=changes.pop("batch_size", None), **data)
    settings = {"inner": pt.Adam(1e-2), "inner_steps": T, "objective": pt.HyperDrift(0.3, default=0.05)} | changes
    return pt.Tuner(problem, outer=torch.optim.SGD(lambdas.parameters(), lr=0.1), **settings)


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


CASES: dict[str, dict[str, Any]] = {
    "element": {},
    "tensor": {"hyper": lambda model: pt.WeightDecay(model, per="tensor", init=0.1)},
    "global": {"hyper": lambda model: pt.WeightDecay(model, per="global", init=0.1)},
    "positive": {"hyper": lambda model: pt.WeightDecay(model, init=0.1, positive=True)},
    "no biases": {"hyper": lambda model: pt.WeightDecay(model, init=0.1, biases=False)},
    "no biases, global": {"hyper": lambda model: pt.WeightDecay(model, per="global", init=0.1, biases=False)},
    "two decays": {"hyper": two_decays},
    "module of a user": {"hyper": Ridge},
    "stride": {"path_stride": 5},
    "chains": {"chains": 3, "restart": True, "inner": pt.Langevin(0.1, 1000.0)},
    "folds": {"folds": 2},
    "mini-batches": {"batch_size": 8},
    "BatchNorm": {"model": batch_norm},
    "K = 0": {"hypergradient": pt.Truncated(0)},
    "window": {"hypergradient": pt.Windowed(4)},
}


def measured(case: dict[str, Any], engine: Any) -> list[Tensor]:
    """Return √Y and the λ-gradient of J in the third outer step."""
    made = tuner(**case, engine=engine)
    made.fit(2, progress=False)
    value = made.hypergradient()
    return [torch.tensor(value.regularizer), *(p.grad for p in made.problem.hyper.parameters() if p.grad is not None)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_sum_of_squares_gives_the_sum_of_the_summands(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuner(**CASES[case]).outer_run.plan(0.3).sums_squares
    eager, traced = (measured(CASES[case], engine) for engine in ("eager", Traced(steps=2)))
    monkeypatch.setattr(pt.Problem, "has_diagonal_penalty", False)
    wanted = measured(CASES[case], "eager")
    assert wanted[0] > 0.01
    for one, other, right in zip(eager, traced, wanted, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(other, right, rtol=1e-12, atol=1e-14)


def test_stacked_runs_have_their_own_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(default: float, seed: int) -> pt.Tuner:
        hyper = lambda model: pt.WeightDecay(model, init=0.1, positive=True)  # noqa: E731
        return tuner(hyper, objective=pt.HyperDrift(0.3, default=default), seed=seed)

    def regularizers() -> Tensor:
        cells = {"default": [-2.0, -1.0], "seed": [0, 1]}
        found = pt.fit_grid(build, cells, outer_steps=3, engine=Traced(steps=2), progress=False)
        return torch.tensor(found.history["regularizer"].values)

    fast = regularizers()
    monkeypatch.setattr(pt.Problem, "has_diagonal_penalty", False)
    assert len(fast.unique()) == len(fast) == 12
    torch.testing.assert_close(fast, regularizers(), rtol=1e-11, atol=0.0)  # three outer steps of rounding


OTHERS: dict[str, dict[str, Any]] = {
    "online": {"online": True},
    "K = 1": {"path_hypergradient": pt.Truncated(1)},
    "another penalty": {"hyper": Cubic},
    "a penalty without closed form": {"hyper": lambda model: nn.ModuleList([pt.WeightDecay(model), pt.L1(model)])},
    "example weights": {"hyper": lambda model: nn.ModuleList([pt.WeightDecay(model), pt.ExampleWeights(20).double()])},
    "Eq. 5": {"objective": pt.PACBayes(0.3)},
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_sums_are_made_summand_by_summand(case: str) -> None:
    assert not tuner(**OTHERS[case]).outer_run.plan(0.3).sums_squares


def test_a_recorded_step_has_one_operation_more_than_at_zeta_0(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    build = Traced._build

    def keep(engine: Traced, graph: Any, *settings: Any) -> Any:
        recorded.append(graph)
        return build(engine, graph, *settings)

    monkeypatch.setattr(Traced, "_build", keep)

    def operations(objective: Any) -> Counter[str]:
        recorded.clear()
        tuner(objective=objective, engine=Traced(steps=2)).fit(1, progress=False)
        called = [node.target.__name__ for node in recorded[0].graph.nodes if node.op == "call_function"]
        return Counter(name for name in called if name != "getitem")

    more = operations(pt.HyperDrift(0.3))
    more.subtract(operations(pt.ValidationRisk()))
    assert {name: count for name, count in more.items() if count} == {"_foreach_addcmul": 1}
