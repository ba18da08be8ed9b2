"""Implicit differentiation whose linear system is solved over the outer steps, a gradient step at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pactune.checks import POSITIVE, check_count, check_number
from pactune.hypergradient.base import ChainContext, ChainEstimator
from pactune.hypergradient.records import InnerState, ValueAndGradient
from pactune.hypergradient.solvers import check_damping, damped
from pactune.hypergradient.stationary_point import StationaryChainEstimator, StationaryEstimator
from pactune.hypergradient.support import stationary_system
from pactune.hypergradient.train_risk import Batches, check_batches, mean_train_risk
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, add, axpy, norm, sub, zeros_like

__all__ = ["RunningImplicit"]


@dataclass(frozen=True)
class RunningImplicit(StationaryEstimator):
    """∂R_V/∂λ − vᵀ ∂²R_T/∂θ∂λ with a v that takes a gradient step v ← v − α(∇²R_T v − ∇R_V) per outer step.

    v starts at 0 and is kept from outer step to outer step, as in SOBA (Dagréou et al. 2022). Every outer step draws
    fresh mini-batches, so few inner steps per outer step suffice. The gradient tends to that of `Implicit` as θ and v
    converge; until then it is biased by ‖v − (∇²R_T)⁻¹∇R_V‖. Early gradients are short, since v starts at 0. Choose it
    for many outer steps with one or a few inner steps each, on a sample that is too large for a solve per outer step.
    The column `implicit_residual` of the history has ‖∇R_V − ∇²R_T v‖/‖∇R_V‖ before the step, on the mini-batches.

    Args:
        alpha: α; None takes the inner learning rate. The steps converge when α‖∇²R_T + damping·I‖ < 2.
        steps: gradient steps on v per outer step; more than one go along the same mini-batches.
        batches: the rows of R_T: a number of fresh mini-batches, "all" rows, or None for those of the last inner step.
        damping: added to the diagonal of the Hessian. Where training has negative curvature, v grows without it.
    """

    alpha: float | None = None
    steps: int = 1
    batches: Batches = 1
    damping: float = 0.0

    remembers = True

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, POSITIVE, none="for the inner learning rate")
        check_count("steps", self.steps)
        check_batches(self.batches)
        check_damping(self.damping)

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _RunningChainEstimator(self, trajectory, context)


class _RunningChainEstimator(StationaryChainEstimator):
    def __init__(self, settings: RunningImplicit, trajectory: Trajectory, context: ChainContext) -> None:
        super().__init__(trajectory, context)
        self._settings = settings

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        assert self._last is not None
        settings, inputs = self._settings, self._context.inputs
        risk = mean_train_risk(self._trajectory, self._context, self._last.data, settings.batches)
        gradient, hessian, mixed = risk.linearize(state)
        problem, eta = self._trajectory.problem, self._learning_rate
        slope = gradient() if problem.has_prox else {}
        support = stationary_system(problem, state.params, self._context.hyper, slope, eta)
        alpha = settings.alpha if settings.alpha is not None else eta
        with torch.no_grad():
            b, product = support.restrict(final.by_params), damped(support.operator(hessian), settings.damping)
            v = support.restrict(inputs.memory) if inputs is not None and inputs.memory else zeros_like(b)
            for step in range(settings.steps):
                residual = sub(b, product(v))
                if step == 0:
                    self._notes = {"implicit_residual": norm(residual) / norm(b).clamp_min(_tiny(final))}
                v = axpy(alpha, residual, v)
        self._memory = v
        return add(sub(final.by_hyper, mixed(v)), support.by_hyper(v))


def _tiny(final: ValueAndGradient) -> float:
    return torch.finfo(final.value.dtype).tiny
