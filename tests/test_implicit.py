"""Implicit differentiation says how far it can be trusted, and refuses a training risk with kinks at θ_T."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.hypergradient import implicit
from pactune.trees import Params

pytestmark = pytest.mark.slow

DOUBLE = torch.float64
COLUMNS = ["train_gradient_norm", "implicit_residual", "implicit_shift", "implicit_distance"]
COLUMNS += ["implicit_damping", "implicit_products"]
NEUMANN = pt.Implicit(pt.Neumann(400))


def data(seed: int) -> tuple[Tensor, Tensor]:
    """Return 30 rows whose target depends on three of eight features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(30, 8, generator=generator, dtype=DOUBLE)
    noise = torch.randn(30, 1, generator=generator, dtype=DOUBLE)
    return x, x[:, :1] - 2 * x[:, 1:2] + 0.5 * x[:, 2:3] + 0.3 * noise


class Penalty(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], value: float = 0.1) -> None:
        super().__init__()
        self.function, self.value = function, nn.Parameter(torch.tensor(value, dtype=DOUBLE))

    def penalty(self, params: Params) -> Tensor:
        return self.value * torch.stack([self.function(p) for p in params.values()]).sum()


class Value(nn.Module):
    def __init__(self, value: float = 0.1) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=DOUBLE))


def tuner(hyper: nn.Module, steps: int, solver: Any = NEUMANN, inner: Any = None, **losses: Any) -> pt.Tuner:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(8, 1, dtype=DOUBLE)
    problem = pt.Problem(model, hyper, train=data(0), valid=data(1), **(losses or {"loss": F.mse_loss}))
    return pt.Tuner(
        problem,
        inner=inner or pt.SGD(0.1),
        inner_steps=steps,
        outer=torch.optim.SGD(hyper.parameters(), lr=1e-3),
        objective=pt.ValidationRisk(),
        hypergradient=solver,
    )


KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": lambda p: p.abs().sum(),
    "norm of order 1": lambda p: p.norm(p=1),
    "root of square": lambda p: (p**2).sqrt().sum(),
    "sign": lambda p: (p * p.detach().sign()).sum(),
    "two hinges": lambda p: F.relu(p).sum() + F.relu(-p).sum(),
    "clamp": lambda p: p.clamp(-0.1, 0.1).abs().sum(),
    "largest": lambda p: p.abs().max(),
    "group lasso": lambda p: p.norm(),
}
SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "square": lambda p: (p**2).sum(),
    "smoothed abs": lambda p: (p**2 + 0.1).sqrt().sum(),
    "norm far from its zero": lambda p: p.norm() if p.numel() > 1 else 0 * p.sum(),
    "kink far from θ_T": lambda p: F.relu(p.abs() - 5.0).sum() + (p**2).sum(),
}


@pytest.mark.parametrize("name", KINKS)
def test_a_kink_at_the_solution_is_refused(name: str) -> None:
    with pytest.raises(pt.GradientError, match="jumps near θ_T"):
        tuner(Penalty(KINKS[name]), 150).hypergradient()


def lasso(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return (
        F.mse_loss(model(batch[0]), batch[1])
        + hyper.value * torch.cat([p.ravel() for p in model.parameters()]).abs().sum()
    )


def plain(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def test_a_kink_in_the_training_loss_is_refused() -> None:
    with pytest.raises(pt.GradientError, match="training risk jumps near θ_T"):
        tuner(Value(), 150, train_loss=lasso, valid_loss=plain).hypergradient()


@pytest.mark.parametrize("steps", [150, 1500])
@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_penalty_passes_without_a_word(name: str, steps: int) -> None:
    """With 1500 steps θ moves by rounding alone, which is no jump."""
    exact = tuner(Penalty(SMOOTH[name]), 150, pt.Truncated(150))
    exact.hypergradient()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tuner(Penalty(SMOOTH[name]), steps)
        result = found.fit(1, progress=False)
    assert float(found.problem.hyper.value.grad) == pytest.approx(float(exact.problem.hyper.value.grad), rel=0.03)
    assert list(result.history.columns[-len(COLUMNS) - 1 : -1]) == COLUMNS
    assert result.rows[0]["implicit_residual"] < 1e-6


def test_the_columns_are_what_they_say() -> None:
    found = tuner(Penalty(SMOOTH["square"]), 5)
    with pytest.warns(UserWarning, match="far from stationary"):
        row = found.fit(1, progress=False).rows[0]
    x, y = data(0)
    params = list(found.problem.model.parameters())
    risk = F.mse_loss(F.linear(x, *params), y) + 0.1 * sum((p**2).sum() for p in params)
    gradient = torch.cat([g.ravel() for g in torch.autograd.grad(risk, params)])
    whole = torch.cat([x, torch.ones(30, 1, dtype=DOUBLE)], 1)
    hessian = 2 * whole.T @ whole / 30 + 0.2 * torch.eye(9, dtype=DOUBLE)
    xv, yv = data(1)
    slope = torch.cat([g.ravel() for g in torch.autograd.grad(F.mse_loss(F.linear(xv, *params), yv), params)])
    theta = torch.cat([p.detach().ravel() for p in params])
    assert row["train_gradient_norm"] == pytest.approx(float(gradient.norm()), rel=1e-9)
    shift = float(torch.linalg.solve(hessian, slope) @ gradient)
    assert row["implicit_shift"] == pytest.approx(abs(shift), rel=1e-6)
    least = float(gradient.norm() ** 3 / (gradient @ hessian @ gradient) / theta.norm())
    assert row["implicit_distance"] == pytest.approx(least, rel=1e-9)
    assert least < float(torch.linalg.solve(hessian, gradient).norm() / theta.norm())


FAR: dict[str, tuple[int, Any, Any, str]] = {
    "few steps": (5, NEUMANN, None, "θ_T is far from stationary"),
    "some steps": (30, NEUMANN, None, "θ_T is far from stationary"),
    "decoupled penalty": (400, NEUMANN, pt.Adam(0.01), "θ_T is far from stationary"),
    "short series": (200, pt.Implicit(pt.Neumann(2)), None, "relative residual"),
    "few products": (200, pt.Implicit(pt.ConjugateGradient(1)), None, "relative residual"),
    "much damping": (200, pt.Implicit(pt.ConjugateGradient(20, damping=3.0)), None, "relative residual"),
}


@pytest.mark.parametrize("name", FAR)
def test_a_gradient_that_is_far_off_is_a_warning_once(name: str) -> None:
    steps, solver, inner, message = FAR[name]
    with pytest.warns(UserWarning, match=message) as seen:
        tuner(Penalty(SMOOTH["square"]), steps, solver, inner).fit(3, progress=False)
    assert len([warning for warning in seen if "Implicit" in str(warning.message)]) == 1
    with pytest.warns(UserWarning, match=message):
        tuner(Penalty(SMOOTH["square"]), steps, solver, inner).hypergradient()


def test_identity_solves_nothing_and_is_not_blamed_for_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = tuner(Penalty(SMOOTH["square"]), 200, pt.Implicit(pt.Identity())).fit(1, progress=False).rows[0]
    assert row["implicit_residual"] > 0.5


def test_other_estimators_have_no_such_columns() -> None:
    history = tuner(Penalty(SMOOTH["square"]), 5, pt.Truncated(1)).fit(1, progress=False).history
    assert not set(COLUMNS) & set(history.columns)


def test_jumps_are_looked_for_in_rounds_one_two_four_and_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    found, looked = tuner(Penalty(SMOOTH["square"]), 20), list[int]()
    monkeypatch.setattr(implicit, "check_smooth", lambda *_: looked.append(found.outer_run.chains.rounds + 1))
    for _ in range(9):
        found.hypergradient()
    assert list(dict.fromkeys(looked)) == [1, 2, 4, 8]


def test_a_kink_that_appears_later_is_refused_in_the_next_round_that_looks() -> None:
    penalty = Penalty(KINKS["abs"], value=0.0)
    found = tuner(penalty, 150)
    for _ in range(2):
        found.hypergradient()
    with torch.no_grad():
        penalty.value.fill_(0.1)
    found.hypergradient()
    with pytest.raises(pt.GradientError, match="jumps near θ_T"):
        found.hypergradient()
