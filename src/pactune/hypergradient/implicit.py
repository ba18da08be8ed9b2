"""Implicit differentiation of the validation risk at a converged θ_T."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.checks import NOT_NEGATIVE, POSITIVE, Rule, check_count, check_number
from pactune.dynamics.base import Dynamics
from pactune.errors import GradientError, SettingError
from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator
from pactune.hypergradient.records import InnerState, Observation, StepRecord, ValueAndGradient
from pactune.hypergradient.stationarity import check_smooth, concern, measure, penalty_gradient, penalty_product
from pactune.hypergradient.support import stationary_system
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, add, axpy, dot, scale, sub, zeros_like

__all__ = ["ConjugateGradient", "Identity", "Implicit", "LinearSolver", "Neumann"]

Operator = Callable[[Params], Params]


class LinearSolver(ABC):
    """An approximate solution v of ∇²R_T v = b."""

    @abstractmethod
    def solve(self, hessian: Operator, b: Params, learning_rate: float) -> Params:
        """Return v ≈ (∇²R_T)⁻¹ b; `learning_rate` is η of the inner dynamics."""


@dataclass(frozen=True)
class Identity(LinearSolver):
    """v = αb; with α = η it is T1–T2.

    Args:
        alpha: None takes the inner learning rate.
    """

    alpha: float | None = None

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, POSITIVE, none="for the inner learning rate")

    def solve(self, hessian: Operator, b: Params, learning_rate: float) -> Params:
        """Return αb."""
        return scale(self.alpha if self.alpha is not None else learning_rate, b)


@dataclass(frozen=True)
class Neumann(LinearSolver):
    """v = α Σ_{j≤steps} (I − α∇²R_T)^j b (Lorraine et al.): steps + 1 steps of unrolled gradient descent at θ_T.

    Args:
        steps: number of Hessian products.
        alpha: None takes the inner learning rate; the series converges when α‖∇²R_T‖ < 2.
    """

    steps: int
    alpha: float | None = None

    def __post_init__(self) -> None:
        check_count("steps", self.steps, 0, words="≥ 0, a whole number")
        check_number("alpha", self.alpha, POSITIVE, none="for the inner learning rate")

    def solve(self, hessian: Operator, b: Params, learning_rate: float) -> Params:
        """Return the truncated series."""
        alpha = self.alpha if self.alpha is not None else learning_rate
        term, total = b, b
        for _ in range(self.steps):
            term = axpy(-alpha, hessian(term), term)
            total = axpy(1.0, term, total)
        return scale(alpha, total)


@dataclass(frozen=True)
class ConjugateGradient(LinearSolver):
    """Conjugate gradients on (∇²R_T + damping·I) v = b, for a positive definite Hessian.

    Args:
        steps: number of Hessian products at most.
        damping: added to the diagonal.
        tolerance: stop at this residual relative to ‖b‖.
    """

    steps: int
    damping: float = 0.0
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        check_count("steps", self.steps, words="≥ 1, a whole number")
        check_number("damping", self.damping, Rule("≥ 0 and finite", NOT_NEGATIVE.holds))
        check_number("tolerance", self.tolerance, NOT_NEGATIVE)

    def solve(self, hessian: Operator, b: Params, learning_rate: float) -> Params:
        """Return the iterate after at most `steps` products."""
        v, residual, direction = zeros_like(b), b, b
        rho = dot(b, b)
        stop = self.tolerance * self.tolerance * rho
        for _ in range(self.steps):
            if bool(rho <= stop):
                break
            image = axpy(self.damping, direction, hessian(direction))
            curvature = dot(direction, image)
            if not bool(curvature.isfinite()):
                return scale(float("nan"), b)  # training diverged; the caller reports the NaN
            if not bool(curvature > 0):
                raise GradientError(
                    "the training Hessian is not positive definite at θ_T, so conjugate gradients do not apply; "
                    "raise `damping`, train longer, or use Neumann"
                )
            alpha = rho / curvature
            v, residual = axpy(alpha, direction, v), axpy(-alpha, image, residual)
            rho, previous = dot(residual, residual), rho
            direction = axpy(rho / previous, direction, residual)
        return v


@dataclass(frozen=True)
class Implicit(Estimator):
    """dR_V/dλ = ∂R_V/∂λ − ∇R_Vᵀ (∇²R_T)⁻¹ ∂²R_T/∂θ∂λ, at a θ_T where ∇R_T = 0.

    The Hessian is that of the last training batch (the whole set without `batch_size`), penalty included. The estimator
    differentiates the validation risk only, because the regularizer depends on the whole trajectory.

    With a penalty that acts by a `prox`, such as `L1`, it differentiates the fixed point θ = prox(θ − η∇R_T) instead,
    restricted to the support: the elements that the prox leaves free. So the system of the lasso has the size of its
    support. The prox must act on every element by itself.

    The history gets four more columns. `train_gradient_norm` is ‖∇R_T(θ_T)‖, with a prox ‖θ − prox(θ − η∇R_T)‖/η.
    `implicit_residual` is the relative residual of the linear solve. `implicit_shift` is the first-order change of R_V
    until training is stationary. `implicit_distance` is a lower bound on the distance from θ_T to the stationary point,
    relative to ‖θ_T‖. A warning appears if the residual is above 0.1 (except with `Identity`, which solves nothing),
    the shift above 5 % of R_V, or the distance above 0.02. A training gradient that jumps near θ_T, as with abs() in a
    penalty, raises an error: give such a penalty a `prox`.

    Args:
        solver: `Identity()`, `Neumann(steps)` or `ConjugateGradient(steps)`.
    """

    solver: LinearSolver

    for_path = False

    def skippable_steps(self, inner_steps: int) -> int:
        """Return T − 1: only the last mini-batch is needed."""
        return inner_steps - 1

    def reach(self, inner_steps: int) -> int:
        """Return 0: the estimator differentiates no step of the dynamics."""
        return 0

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return t: the estimator differentiates no step."""
        return t

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise if `solver` is not a linear solver."""
        if not isinstance(self.solver, LinearSolver):
            kind = type(self.solver).__name__
            raise SettingError(f"`{role}`: solver must be Identity, Neumann or ConjugateGradient, got {kind}")
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _ImplicitChainEstimator(self.solver, trajectory, context)

    def concern(self, notes: Mapping[str, float | Tensor], risk: float) -> str | None:
        """Return why the gradient is far off; None if it is not."""
        return concern(notes, risk, solves=not isinstance(self.solver, Identity))


class _ImplicitChainEstimator(ChainEstimator):
    def __init__(self, solver: LinearSolver, trajectory: Trajectory, context: ChainContext) -> None:
        self._solver, self._trajectory, self._context = solver, trajectory, context
        self._last: StepRecord | None = None
        self._notes: Params = {}

    @property
    def notes(self) -> Params:
        return self._notes

    def observe(self, record: StepRecord, observation: Observation) -> None:
        raise NotImplementedError("Implicit does not differentiate the regularizer")

    def add_step(self, record: StepRecord) -> None:
        self._last = record

    def path_gradient(self) -> Params:
        raise NotImplementedError("Implicit does not differentiate the regularizer")

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        assert self._last is not None
        data, hyper = self._last.data, self._context.hyper
        self._check_smooth(state, self._last)
        hessian, mixed = self._trajectory.train_products(state, hyper, data)
        eta = self._trajectory.dynamics.learning_rate(self._last.state.step)
        gradient = self._trajectory.train_gradient(state, hyper, data)
        system = stationary_system(self._trajectory.problem, state.params, hyper, gradient, eta)
        with torch.no_grad():
            operator, b = system.operator(hessian), system.restrict(final.by_params)
            v = self._solver.solve(operator, b, eta)
            self._notes = measure(operator, system.residual, v, b, state.params)
        return add(sub(final.by_hyper, mixed(v)), system.by_hyper(v))

    def _check_smooth(self, state: InnerState, last: StepRecord) -> None:
        """Raise if the training gradient jumps along a training step, or the penalty's along its own gradient step."""
        trajectory, hyper, data = self._trajectory, self._context.hyper, last.data
        check_smooth(
            "training risk",
            lambda params: trajectory.train_gradient(state._replace(params=params), hyper, data),
            lambda params: trajectory.train_products(state._replace(params=params), hyper, data)[0],
            state.params,
            sub(state.params, last.state.params),
        )
        if trajectory.problem.has_penalty:
            eta = trajectory.dynamics.learning_rate(last.state.step)
            slope = penalty_gradient(trajectory.problem, hyper)
            product = penalty_product(trajectory.problem, hyper)
            check_smooth("penalty", slope, product, state.params, scale(-eta, slope(state.params)))
