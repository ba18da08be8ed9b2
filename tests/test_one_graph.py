"""A short unroll of a small problem runs in one autograd graph, and has the numbers of the stored steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.hypergradient import one_graph, trajectory
from pactune.rounds import chain
from pactune.trees import Params

T, DOUBLE = 10, torch.float64


class PlainPenalty(nn.Module):
    """A penalty without a closed form of its derivatives."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((), -2.0, dtype=DOUBLE))

    def penalty(self, params: Params) -> Tensor:
        return self.log.exp() * torch.stack([(p**2 + 0.1).sqrt().sum() for p in params.values()]).sum()


HYPERS: dict[str, Any] = {
    "closed penalty": lambda model: pt.WeightDecay(model, init=0.1),
    "penalty by autograd": PlainPenalty,
    "prox": lambda model: pt.L1(model, per="global", init=0.01),
    "learning rates": pt.LearningRates,
    "initialization": pt.Initialization,
}


def sample(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 4, generator=generator, dtype=DOUBLE)
    return x, (x[:, :1] - x[:, 1:2]).tanh()


def run(
    hyper_of: Any, segment: int | None, *, engine: str = "eager", rounds: int = 2, steps: int = T, **data: Any
) -> list[Tensor]:
    """Return θ and the gradient after some rounds of a model with a buffer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).double()
    hyper = hyper_of(model).double()
    data = data or {"train": sample(0), "valid": sample(1)}
    tuner = pt.Tuner(
        pt.Problem(model, hyper, **data, loss=F.mse_loss),
        inner=pt.SGD(0.1, momentum=0.5),
        inner_steps=steps,
        restart=True,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.01),
        objective=pt.ValidationRisk(),
        hypergradient=pt.Windowed(steps, segment=segment),
        engine=engine,
    )
    for _ in range(rounds):
        tuner.hypergradient()
        tuner.outer.step()
    return [*model.state_dict().values(), *(p.grad for p in hyper.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", HYPERS)
def test_one_graph_has_the_numbers_of_the_stored_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    original = one_graph.OneGraph.step
    monkeypatch.setattr(one_graph.OneGraph, "step", lambda self, data: taken.append(1) or original(self, data))
    wanted = run(HYPERS[kind], 1)
    assert not taken
    found = run(HYPERS[kind], None)
    assert len(taken) == 2 * T
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_large_problem_stores_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_graph, "MOST_NUMBERS", 10)
    monkeypatch.setattr(chain, "OneGraph", None)  # a call would fail
    run(HYPERS["closed penalty"], None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["penalty by autograd", "initialization"])
def test_recorded_rounds_are_the_eager_ones_bit_for_bit(kind: str) -> None:
    for a, b in zip(run(HYPERS[kind], None, engine="traced", rounds=3), run(HYPERS[kind], None, rounds=3), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_stacked_tasks_have_the_numbers_of_the_stored_steps() -> None:
    tasks = [(sample(i), sample(i + 10)) for i in range(3)]
    wanted = run(pt.Initialization, 1, tasks=tasks)
    for engine in ("eager", "traced"):
        for a, b in zip(run(pt.Initialization, None, engine=engine, tasks=tasks), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "graphs"), [("closed penalty", 0), ("initialization", 1)])
def test_a_gradient_that_is_not_differentiated_has_no_graph(
    kind: str, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1–T2 of a penalty goes through no loss; θ_0 is reached through the gradient of the step."""
    flags: list[bool] = []
    original = trajectory.params_gradient

    def params_gradient(risk: Tensor, params: Params, *, graph: bool) -> Params:
        flags.append(graph)
        return original(risk, params, graph=graph)

    monkeypatch.setattr(trajectory, "params_gradient", params_gradient)
    for segment in (None, 1):
        flags.clear()
        run(HYPERS[kind], segment, rounds=1, steps=1)
        assert flags == [bool(graphs)]


class Scaled(nn.Module):
    """A model whose output λ scales."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 1, dtype=DOUBLE), nn.Module()
        self.scale.value = nn.Parameter(torch.tensor(2.0, dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale.value * self.layer(x)


def test_an_estimator_that_goes_back_no_step_takes_no_derivative_by_the_parameters() -> None:
    torch.manual_seed(0)
    model = Scaled()
    tuner = pt.Tuner(
        pt.Problem(model, model.scale, train=sample(0), valid=sample(1), loss=F.mse_loss),
        inner=pt.SGD(0.1),
        inner_steps=2,
        outer=torch.optim.SGD(model.scale.parameters(), lr=0.1),
        objective=pt.ValidationRisk(),
        hypergradient=pt.Truncated(0),
    )
    tuner.hypergradient()
    run = tuner.outer_run.plan(0.0).trajectory
    state, batches = tuner.outer_run.chains.parts[0].states[0], list(run.problem.valid.epoch())
    found = [run.final_risk(state, run.problem.hyperparameters(), batches, by_params=flag) for flag in (False, True)]
    assert not found[0].by_params
    assert set(found[1].by_params) == {"layer.weight", "layer.bias"}
    assert torch.equal(found[0].by_hyper["value"], found[1].by_hyper["value"])
    assert torch.equal(found[0].by_hyper["value"], model.scale.value.grad)
