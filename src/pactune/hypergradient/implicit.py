"""Implicit differentiation of the validation risk at a converged θ_T."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.checks import check_flag
from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.base import ChainContext, ChainEstimator
from pactune.hypergradient.records import InnerState, StepRecord, ValueAndGradient
from pactune.hypergradient.solvers import Identity, LinearSolver, LinearSystem, Operator
from pactune.hypergradient.stationarity import check_smooth, concern, measure, penalty_gradient, penalty_product
from pactune.hypergradient.stationary_point import StationaryChainEstimator, StationaryEstimator
from pactune.hypergradient.support import StationarySystem, stationary_system
from pactune.hypergradient.train_risk import Batches, MeanTrainRisk, check_batches, mean_train_risk
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params, add, scale, sub

__all__ = ["Implicit"]

ROUNDING = 1e-3  # a note of a float32 run is a rounded number; no solver raises its damping by less


@dataclass(frozen=True)
class Implicit(StationaryEstimator):
    """dR_V/dλ = ∂R_V/∂λ − ∇R_Vᵀ (∇²R_T)⁻¹ ∂²R_T/∂θ∂λ, at a θ_T where ∇R_T = 0.

    R_T is the risk of `batches`, penalty included. By default it is the mini-batch of the last step (the whole set
    without `batch_size`); then only its rows have a gradient, which matters for example weights. The estimator
    differentiates the validation risk only, because the regularizer depends on the whole trajectory.

    With a penalty that acts by a `prox`, such as `L1`, it differentiates the fixed point θ = prox(θ − η∇R_T) instead,
    restricted to the support: the elements that the prox leaves free. So the system of the lasso has the size of its
    support. The prox must act on every element by itself.

    The history gets six more columns. `train_gradient_norm` is ‖∇R_T(θ_T)‖, with a prox ‖θ − prox(θ − η∇R_T)‖/η.
    `implicit_residual` is the relative residual of the linear solve. `implicit_shift` is the first-order change of R_V
    until training is stationary. `implicit_distance` is a lower bound on the distance from θ_T to the stationary point,
    relative to ‖θ_T‖. `implicit_damping` is the damping that the solver used, and `implicit_products` the number of its
    Hessian products. A warning appears if the solver had to raise its damping, if the residual is above 0.1 (except
    with `Identity`, which solves nothing), the shift above 5 % of R_V, or the distance above 0.02. A training gradient
    that jumps near θ_T, as with abs() in a penalty, raises an error: give such a penalty a `prox`. The outer steps 1,
    2, 4, 8, … of a run look for jumps, because that takes as long as several Hessian products.

    Args:
        solver: `Identity()`, `Neumann(steps)`, `ConjugateGradient(steps)` or `Nystrom(rank, damping)`.
        batches: the rows of R_T: None for the mini-batch of the last step; a number of fresh mini-batches, drawn in an
            order of their own, whose graphs are kept in memory; or "all" rows, read mini-batch by mini-batch at every
            Hessian product.
        warm_start: start the solver at the solution of the last outer step, which is saved in checkpoints.
    """

    solver: LinearSolver
    batches: Batches = None
    warm_start: bool = False

    def __post_init__(self) -> None:
        check_batches(self.batches)
        check_flag("warm_start", self.warm_start)

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """True with a warm start."""
        return self.warm_start

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise if `solver` is not a linear solver."""
        if not isinstance(self.solver, LinearSolver):
            kind = type(self.solver).__name__
            raise SettingError(f"`{role}`: solver must be Identity, Neumann, ConjugateGradient or Nystrom, got {kind}")
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def recordable(self, problem: InnerProblem, round_index: int | None) -> bool:
        """Return False if the solver looks at numbers, or the round looks for jumps."""
        looks = self.solver.looks or _looks_for_jumps(round_index)
        return not looks and super().recordable(problem, round_index)

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _ImplicitChainEstimator(self, trajectory, context)

    def concern(self, notes: Mapping[str, float | Tensor], risk: float) -> str | None:
        """Return why the gradient is far off; None if it is not."""
        raised, given = float(notes["implicit_damping"]), getattr(self.solver, "damping", 0.0)
        if raised > (1 + ROUNDING) * given:
            return (
                f"the training Hessian is not positive definite at θ_T, so {type(self.solver).__name__} raised its "
                f"damping from {given:.2g} to {raised:.2g}, and the gradient of Implicit is that of the damped system; "
                "train longer, or use Truncated or Windowed"
            )
        return concern(notes, risk, solves=not isinstance(self.solver, Identity))


class _ImplicitChainEstimator(StationaryChainEstimator):
    def __init__(self, settings: Implicit, trajectory: Trajectory, context: ChainContext) -> None:
        super().__init__(trajectory, context)
        self._settings = settings

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        assert self._last is not None
        risk = mean_train_risk(self._trajectory, self._context, self._last.data, self._settings.batches)
        gradient, hessian, mixed = risk.linearize(state)
        inputs = self._context.inputs
        if _looks_for_jumps(None if inputs is None else inputs.round_index):
            self._check_smooth(risk, hessian, state, self._last)
        problem, hyper, eta = self._trajectory.problem, self._context.hyper, self._learning_rate
        support = stationary_system(problem, state.params, hyper, gradient(), eta)
        with torch.no_grad():
            system = self._system(support, hessian, final.by_params)
            found = self._settings.solver.solve(system)
            self._notes = measure(system, found, support.residual, state.params)
        numbers = {"implicit_damping": found.damping, "implicit_products": found.products}
        largest = torch.finfo(final.value.dtype).max  # of a note; a damping may be any float of Python
        self._notes |= {name: final.value.new_full((), min(number, largest)) for name, number in numbers.items()}
        if self._settings.warm_start:
            self._memory = found.value
        return add(sub(final.by_hyper, mixed(found.value)), support.by_hyper(found.value))

    def _system(self, support: StationarySystem, hessian: Operator, b: Params) -> LinearSystem:
        """Return the system on the support. A start may come from another support, so it is restricted too."""
        inputs = self._context.inputs
        generator = torch.Generator("cpu").manual_seed(0) if inputs is None else inputs.generator("solver")
        start = inputs.memory if inputs is not None and self._settings.warm_start else {}
        guess = support.restrict(start) if start else None
        return LinearSystem(support.operator(hessian), support.restrict(b), self._learning_rate, generator, guess)

    def _check_smooth(self, risk: MeanTrainRisk, hessian: Operator, state: InnerState, last: StepRecord) -> None:
        """Raise if the training gradient jumps along a training step, or the penalty's along its own gradient step."""
        trajectory, hyper = self._trajectory, self._context.hyper
        check_smooth(
            "training risk",
            lambda params: risk.gradient(state._replace(params=params)),
            lambda at: hessian if at is state.params else risk.linearize(state._replace(params=at)).hessian,
            state.params,
            sub(state.params, last.state.params),
        )
        if trajectory.problem.has_penalty:
            slope = penalty_gradient(trajectory.problem, hyper)
            product = penalty_product(trajectory.problem, hyper)
            check_smooth("penalty", slope, product, state.params, scale(-self._learning_rate, slope(state.params)))


def _looks_for_jumps(round_index: int | None) -> bool:
    """Return True in the rounds 1, 2, 4, 8, … of a run, and in a round that belongs to none."""
    return round_index is None or (round_index + 1).bit_count() == 1
