"""Every estimator against the closed form of quadratic risks, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pactune as pt
from pactune.hypergradient import Estimator
from tests.quadratic import Quadratic, QuadraticRun

T, LR, SIZE = 6, 0.2, 5
TAU = 40.0
STATE, GRADIENT = 1e-9, 1e-9  # relative; the brief of the library is 1e-6


class Setup:
    """A quadratic problem, as a tuner and as a closed form."""

    def __init__(self, inner: Any, *, steps: int = T, zeta: float | None = 0.7, **settings: Any) -> None:
        generator = torch.Generator().manual_seed(3)
        self.quadratic = Quadratic.draw(SIZE, generator)
        self.start = torch.randn(SIZE, generator=generator, dtype=torch.float64)
        self.decay = 0.5 * torch.rand(SIZE, generator=generator, dtype=torch.float64)
        self.zeta, self.steps = zeta, steps
        model = self.quadratic.module(self.start)
        self.hyper = pt.WeightDecay(model, per="element")
        with torch.no_grad():
            self.hyper.values["theta"].copy_(self.decay)
        row = torch.zeros(1, 1, dtype=torch.float64)
        problem = pt.Problem(
            model,
            self.hyper,
            train=row,
            valid=row,
            train_loss=lambda m, batch, h: self.quadratic.train_risk(m(batch[0])[0]),
            valid_loss=lambda m, batch, h: self.quadratic.valid_risk(m(batch[0])[0]),
        )
        self.tuner = pt.Tuner(
            problem,
            inner=inner,
            inner_steps=steps,
            outer=torch.optim.SGD(self.hyper.parameters(), lr=0.1),
            objective=pt.ValidationRisk() if zeta is None else pt.PACBayes(zeta=zeta),
            **settings,
        )

    def run(self) -> tuple[float, Tensor, Tensor]:
        """Return J, its gradient and θ_T by the library."""
        value = self.tuner.hypergradient()
        gradient = self.hyper.values["theta"].grad
        assert gradient is not None
        return value.total, gradient, self.tuner.problem.parameters()["theta"].clone()

    def closed(self, momentum: float, noise: Tensor | None, risk: Estimator, path: Estimator) -> tuple[float, Tensor]:
        """Return J and its gradient by the closed form."""
        run = QuadraticRun(self.quadratic, LR, momentum, noise)
        return run.gradient(self.start, self.decay, self.steps, self.zeta or 0.0, risk, path)

    def noise(self) -> Tensor:
        """Return √(2η/τ) ξ_t as the tuner draws it."""
        step_data = [self.tuner.outer_run.inputs.step_data(t, 1)[0] for t in range(self.steps)]
        return (2 * LR / TAU) ** 0.5 * torch.stack([data.noise["theta"] for data in step_data if data.noise])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


DYNAMICS = {
    "sgd": (pt.SGD(LR), 0.0),
    "momentum": (pt.SGD(LR, momentum=0.6), 0.6),
    "langevin": (pt.Langevin(LR, inverse_temperature=TAU), 0.0),
    "cold langevin": (pt.Langevin(LR, inverse_temperature=float("inf")), 0.0),
}
ESTIMATORS = [pt.Truncated(k) for k in (0, 1, 3, T)] + [pt.Windowed(w) for w in (1, 3, 4, T)] + [pt.ForwardMode()]


@pytest.mark.parametrize("name", DYNAMICS)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_estimator_equals_closed_form(name: str, estimator: Estimator) -> None:
    inner, momentum = DYNAMICS[name]
    setup = Setup(inner, hypergradient=estimator, path_hypergradient=estimator)
    total, gradient, theta = setup.run()
    noise = setup.noise() if name == "langevin" else None
    expected, expected_gradient = setup.closed(momentum, noise, estimator, estimator)
    final = QuadraticRun(setup.quadratic, LR, momentum, noise).states(setup.start, setup.decay, T)[T][0]
    assert relative(theta, final) < STATE
    assert total == pytest.approx(expected, rel=STATE)
    assert relative(gradient, expected_gradient) < GRADIENT


@pytest.mark.parametrize("path", ESTIMATORS, ids=str)
@pytest.mark.parametrize("risk", [pt.Truncated(1), pt.Windowed(4), pt.ForwardMode()], ids=str)
def test_risk_and_regularizer_may_differ_in_estimator(risk: Estimator, path: Estimator) -> None:
    setup = Setup(pt.SGD(LR, momentum=0.6), hypergradient=risk, path_hypergradient=path)
    _, gradient, _ = setup.run()
    assert relative(gradient, setup.closed(0.6, None, risk, path)[1]) < GRADIENT


@pytest.mark.parametrize("estimator", [pt.Truncated(T), pt.Windowed(T), pt.ForwardMode()], ids=str)
def test_whole_horizon_is_exact(estimator: Estimator) -> None:
    """The exact gradient comes from finite differences of the closed form's J, which know no estimator."""
    setup = Setup(pt.SGD(LR, momentum=0.6), hypergradient=estimator, path_hypergradient=estimator)
    _, gradient, _ = setup.run()
    run = QuadraticRun(setup.quadratic, LR, 0.6)
    exact, step = torch.zeros(SIZE, dtype=torch.float64), 1e-5
    for i in range(SIZE):
        for sign in (1, -1):
            moved = setup.decay.clone()
            moved[i] += sign * step
            exact[i] += sign * run.gradient(setup.start, moved, T, 0.7, estimator, estimator)[0] / (2 * step)
    assert relative(gradient, exact) < 1e-8  # central differences err by h² = 1e-10 and rounding by 1e-16/h = 1e-11


def test_one_step_is_t1_t2_written_out() -> None:
    """dR_V/dλ ≈ −η θ_{T−1} ⊙ ∇R_V(θ_T) (Luketina et al.)."""
    setup = Setup(pt.SGD(LR), zeta=None, hypergradient=pt.Truncated(1))
    _, gradient, theta = setup.run()
    before = QuadraticRun(setup.quadratic, LR).states(setup.start, setup.decay, T)[T - 1][0]
    slope = setup.quadratic.B @ theta - setup.quadratic.c
    assert relative(gradient, -LR * before * slope) < 1e-12


def test_identity_is_t1_t2_at_the_last_iterate() -> None:
    """Implicit evaluates ∂²R_T/∂θ∂λ = diag(θ) at θ_T where T1–T2 has θ_{T−1}; nothing else differs."""
    setup = Setup(pt.SGD(LR), zeta=None, hypergradient=pt.Implicit(pt.Identity()))
    _, gradient, theta = setup.run()
    slope = setup.quadratic.B @ theta - setup.quadratic.c
    assert relative(gradient, -LR * theta * slope) < 1e-12
    t1_t2 = Setup(pt.SGD(LR), zeta=None, hypergradient=pt.Truncated(1)).run()[1]
    before = QuadraticRun(setup.quadratic, LR).states(setup.start, setup.decay, T)[T - 1][0]
    assert relative(gradient, t1_t2 * theta / before) < 1e-12
    own = Setup(pt.SGD(LR), zeta=None, hypergradient=pt.Implicit(pt.Identity(alpha=0.5))).run()[1]
    assert relative(own, gradient * 0.5 / LR) < 1e-12


LONG = 300  # the slowest mode contracts by 1 − 0.2·0.5 per step: 0.9³⁰⁰ = 2e-14


@pytest.mark.parametrize("solver", [pt.ConjugateGradient(SIZE), pt.Neumann(400)], ids=str)
def test_implicit_at_convergence(solver: Any) -> None:
    implicit = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=pt.Implicit(solver))
    gradient = implicit.run()[1]
    unrolled = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=pt.Truncated(LONG)).run()[1]
    assert relative(gradient, implicit.quadratic.implicit_gradient(implicit.decay)) < 1e-8
    assert relative(gradient, unrolled) < 1e-8


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_neumann_series_is_truncation_at_convergence(steps: int) -> None:
    neumann = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=pt.Implicit(pt.Neumann(steps))).run()[1]
    truncated = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=pt.Truncated(steps + 1)).run()[1]
    assert relative(neumann, truncated) < 1e-9


def test_conjugate_gradients_with_damping() -> None:
    setup = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=pt.Implicit(pt.ConjugateGradient(SIZE, damping=0.3)))
    _, gradient, theta = setup.run()
    damped = setup.quadratic.A + torch.diag(setup.decay + 0.3)
    slope = setup.quadratic.B @ theta - setup.quadratic.c
    assert relative(gradient, -theta * torch.linalg.solve(damped, slope)) < 1e-8


def test_second_round_goes_on_from_the_first() -> None:
    """Momentum and θ carry over, and truncation never looks back beyond the round."""
    setup = Setup(pt.SGD(LR, momentum=0.6), hypergradient=pt.Truncated(T), path_hypergradient=pt.Truncated(0))
    setup.run()
    _, _, theta = setup.run()
    final = QuadraticRun(setup.quadratic, LR, 0.6).states(setup.start, setup.decay, 2 * T)[2 * T][0]
    assert relative(theta, final) < STATE
