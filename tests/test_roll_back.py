"""`roll_back=True` against DARTS written by hand: look ahead, move λ, go back, and train under the new λ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from tests.test_implicit_options import StopAt, StopError

DOUBLE, LR, OUTER, BATCH, N = torch.float64, 0.1, 0.5, 4, 5


def rows(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 3, generator=generator, dtype=DOUBLE)
    return x, x.prod(1, keepdim=True)


class Net(nn.Module):
    """A model whose architecture parameters are gates."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.gates = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gates * torch.tanh(self.first(x)))


class Gates(nn.Module):
    def __init__(self, model: Net) -> None:
        super().__init__()
        self.gates = model.gates


def build(estimator: Any = None, *, steps: int = 1, **settings: Any) -> pt.Tuner:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net().double()
    hyper = Gates(model)
    data = settings.pop("data", {"train": rows(0), "valid": rows(1), "batch_size": BATCH})
    problem = pt.Problem(model, hyper, **data, loss=F.mse_loss)
    defaults = {"inner": pt.SGD(LR), "objective": pt.ValidationRisk(), "roll_back": True, "seed": 3}
    outer = torch.optim.SGD(hyper.parameters(), lr=OUTER)
    estimator = estimator or pt.Truncated(steps)
    return pt.Tuner(problem, inner_steps=steps, outer=outer, hypergradient=estimator, **(defaults | settings))


def darts(found: pt.Tuner, steps: int, *, momentum: float = 0.0, second: bool = True) -> list[tuple[Tensor, Tensor]]:
    """Return (gates, θ) at every outer step, with the tuner's own mini-batches."""
    model, inputs = found.problem.model, found.outer_run.inputs
    theta = {n: p.detach().clone() for n, p in found.problem.parameters().items()}
    gates, (xv, yv) = model.gates.detach().clone(), rows(1)
    velocity = {n: torch.zeros_like(p) for n, p in theta.items()}

    def train(start: Any, velocity: Any, gates: Tensor, n: int, *, graph: bool) -> Any:
        at, speed = {name: p.requires_grad_() for name, p in start.items()}, velocity
        for t in range(steps):
            x, y = inputs.step_data(n * steps + t, 1)[0].train.data
            risk = F.mse_loss(functional_call(model, {**at, "gates": gates}, (x,)), y)
            slopes = torch.autograd.grad(risk, list(at.values()), create_graph=graph)
            speed = {name: momentum * speed[name] + g for name, g in zip(at, slopes, strict=True)}
            at = {name: p - LR * speed[name] for name, p in at.items()}
        return at, speed

    history = []
    for n in range(N):
        history.append((gates.clone(), torch.cat([p.detach().ravel() for p in theta.values()])))
        leaf = gates.clone().requires_grad_()
        ahead, _ = train({k: p.detach() for k, p in theta.items()}, velocity, leaf, n, graph=second)
        if not second:
            ahead = {k: p.detach() for k, p in ahead.items()}
        (slope,) = torch.autograd.grad(F.mse_loss(functional_call(model, {**ahead, "gates": leaf}, (xv,)), yv), [leaf])
        gates = gates - OUTER * slope
        moved, velocity = train({k: p.detach() for k, p in theta.items()}, velocity, gates, n, graph=False)
        theta, velocity = ({k: p.detach() for k, p in tree.items()} for tree in (moved, velocity))
    return history


def history_of(found: pt.Tuner) -> list[tuple[Tensor, Tensor]]:
    seen = []
    for _ in range(N):
        gates = found.problem.hyper.gates.detach().clone()
        found.hypergradient()
        seen.append((gates, torch.cat([p.detach().ravel() for p in found.problem.parameters().values()])))
        found.outer.step()
    return seen


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_it_is_darts_by_hand(steps: int, momentum: float, order: int, engine: str) -> None:
    estimator = pt.Truncated(steps) if order == 2 else pt.FirstOrder(steps)
    found = build(estimator, steps=steps, inner=pt.SGD(LR, momentum=momentum), engine=engine)
    wanted = darts(build(steps=steps), steps, momentum=momentum, second=order == 2)
    for (gates, theta), (other_gates, other_theta) in zip(history_of(found), wanted, strict=True):
        torch.testing.assert_close(gates, other_gates, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(theta, other_theta, rtol=1e-9, atol=1e-12)


def test_without_it_theta_keeps_the_look_ahead() -> None:
    back, ahead = history_of(build()), history_of(build(roll_back=False))
    assert not torch.allclose(back[-1][1], ahead[-1][1])


def test_fit_counts_the_same_steps() -> None:
    """`fit` keeps θ with the λ that trained it: the last row is that of the N-th look-ahead."""
    found, wanted = build(), darts(build(), 1)
    result = found.fit(N, progress=False)
    assert len(result.rows) == N
    torch.testing.assert_close(result.hyper.gates.detach(), wanted[-1][0], rtol=1e-9, atol=1e-12)
    theta = torch.cat([p.detach().ravel() for p in found.problem.parameters().values()])
    torch.testing.assert_close(theta, wanted[-1][1], rtol=1e-9, atol=1e-12)


def test_plain_training_takes_the_same_steps_under_the_first_hyperparameters() -> None:
    found = build()
    found.outer.param_groups[0]["lr"] = 0.0
    result = found.fit(N, progress=False)
    for tuned, plain in zip(result.rows, result.plain_rows, strict=True):
        assert plain["train_risk"] == pytest.approx(tuned["train_risk"], rel=1e-12)
    assert result.rows[0]["train_risk"] != pytest.approx(result.rows[-1]["train_risk"], rel=1e-3)


CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"inner": pt.Adam(0.01)},
    "langevin": {"inner": pt.Langevin(LR, 1e3)},
    "chains": {"chains": 2, "inner": pt.Langevin(LR, 1e3)},
    "folds": {"data": {"data": rows(0), "folds": 3, "batch_size": BATCH}},
    "tasks": {"data": {"tasks": [(rows(0), rows(1)), (rows(2), rows(3))]}},
    "regularizer": {"objective": pt.PACBayes(0.1)},
    "running implicit": {"estimator": pt.RunningImplicit()},
    "traced": {"engine": "traced", "steps": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_same_bits(case: str, tmp_path: Path) -> None:
    whole, first, again = (build(**CASES[case]) for _ in range(3))
    whole.fit(4, progress=False)
    with pytest.raises(StopError):
        first.fit(4, progress=False, run_dir=tmp_path, callbacks=[StopAt(3)])
    again.fit(4, progress=False, run_dir=tmp_path, resume=True)
    assert torch.equal(whole.problem.hyper.gates, again.problem.hyper.gates)
    for a, b in zip(whole.problem.model.parameters(), again.problem.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_solution_is_kept_while_theta_goes_back() -> None:
    found = build(pt.RunningImplicit(alpha=0.05))
    found.hypergradient()
    before = found.outer_run.chains.parts[0].memory
    found.hypergradient()
    after = found.outer_run.chains.parts[0].memory
    assert before is not None
    assert after is not None
    hessian_step = sum(float((after[0][n] - before[0][n]).norm()) for n in before[0])
    assert 0 < hessian_step < sum(float(after[0][n].norm()) for n in after[0])
