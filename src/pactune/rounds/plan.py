"""What a round is: how it is run, where it starts, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from pactune.hypergradient.base import Estimator
from pactune.hypergradient.records import InnerState, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, axpy

__all__ = [
    "OnStep",
    "RoundOutcome",
    "RoundPlan",
    "RoundRequest",
    "StepDataAt",
]

StepDataAt = Callable[[int], Sequence[StepData]]
OnStep = Callable[[Params], None]


@dataclass(frozen=True)
class RoundPlan:
    """How a round is run.

    Attributes:
        trajectory: the pure functions.
        inner_steps: T.
        zeta: ζ as a number; a round itself does not depend on it.
        risk_estimator: how the risk at θ_T is differentiated.
        path_estimator: how the regularizer is differentiated.
        derivatives: False runs and measures without any λ-derivative.
        path_stride: Δ_t is measured at every so many steps, and the sum rescaled.
    """

    trajectory: Trajectory
    inner_steps: int
    zeta: float
    risk_estimator: Estimator
    path_estimator: Estimator
    derivatives: bool = True
    path_stride: int = 1

    @property
    def ahead(self) -> int:
        """How many first steps no estimator has to see one by one, so that an engine may run them in its own way."""
        if not self.derivatives:
            return self.inner_steps
        if self.trajectory.objective.has_path and not self.path_estimator.direct:
            return 0
        return self.risk_estimator.unseen(self.inner_steps)


class RoundRequest(NamedTuple):
    """One round to be run.

    Attributes:
        plan: how it is run.
        states: where every chain starts.
        hyper: λ, sharing memory with the hyper module when `on_step` changes it.
        step_data: what every chain meets at step t of the round.
        drawn: the draws from P_0 when the chains start anew.
        on_step: the online algorithm: called with the λ-derivative of ‖Δ_t‖, it may move λ in place.
        phase: the first step at which Δ_t is measured, below the stride.
        position: how many inner steps of the run lie before the round.
    """

    plan: RoundPlan
    states: Sequence[InnerState]
    hyper: Params
    step_data: StepDataAt
    drawn: Sequence[Params] | None = None
    on_step: OnStep | None = None
    phase: int = 0
    position: int = 0


class RoundOutcome(NamedTuple):
    """What a round gives.

    Attributes:
        states: the state of every chain at θ_T.
        risk: mean over chains of the risk at θ_T.
        regularizer: √Y, the root of the sum along the trajectory.
        risk_gradient: the λ-gradient of the risk, empty without derivatives.
        path_gradient: the λ-gradient of √Y, empty without derivatives or a path term, and in the online algorithm.
        notes: the risk estimator's numbers for the history, means over chains.
    """

    states: list[InnerState]
    risk: Tensor
    regularizer: Tensor
    risk_gradient: Params
    path_gradient: Params
    notes: Mapping[str, Tensor] = MappingProxyType({})

    def gradient(self, zeta: float) -> Params:
        """Return the λ-gradient of J = risk + ζ√Y."""
        return axpy(zeta, self.path_gradient, self.risk_gradient) if self.path_gradient else self.risk_gradient
