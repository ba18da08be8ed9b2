"""A round in three values: its plan (settings), its request (one round to run) and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.hypergradient.base import Estimator
from pactune.hypergradient.records import EstimatorInputs, InnerState, StepData
from pactune.hypergradient.summed_squares import sums_squares
from pactune.hypergradient.trajectory import Trajectory
from pactune.objectives import ValidationRisk
from pactune.problem import Problem
from pactune.problem.data import Batch
from pactune.trees import Params, axpy, stack

__all__ = [
    "OnStep",
    "RoundOutcome",
    "RoundPlan",
    "RoundRequest",
    "StepDataAt",
    "mean_outcome",
]

StepDataAt = Callable[[int], Sequence[StepData]]
OnStep = Callable[[Params], None]

WITHOUT_PATH = ValidationRisk()  # one object, since recordings belong to an objective


@dataclass(frozen=True)
class RoundPlan:
    """The settings of a round.

    Attributes:
        trajectory: the pure functions.
        inner_steps: T.
        zeta: ζ as a number. The round itself does not use it.
        risk_estimator: differentiates the risk at θ_T.
        path_estimator: differentiates the regularizer.
        derivatives: False computes no λ-derivative.
        path_stride: Δ_t is measured at every `path_stride`-th step, and the sum is rescaled.
        online: True if λ moves inside the round.
        work: of a step of one chain, in floating-point operations of its forwards; infinite if it is unknown.
    """

    trajectory: Trajectory
    inner_steps: int
    zeta: float
    risk_estimator: Estimator
    path_estimator: Estimator
    derivatives: bool = True
    path_stride: int = 1
    online: bool = False
    work: float = math.inf

    @property
    def sums_squares(self) -> bool:
        """True if a chain sums θ_t² along the round, and Σ_t q_t with its λ-derivative follows at the end."""
        direct = self.path_estimator.direct or not self.derivatives
        return direct and not self.online and sums_squares(self.trajectory)

    @property
    def skippable_steps(self) -> int:
        """The number of first steps that no estimator needs one by one, so that an engine may run them."""
        if not self.derivatives:
            return self.inner_steps
        if self.trajectory.objective.has_path and not self.path_estimator.direct:
            return 0
        return self.risk_estimator.skippable_steps(self.inner_steps)

    @property
    def ends_long(self) -> bool:
        """True if the end of the round takes as long as many steps, so that recording the first steps is not enough."""
        return self.skippable_steps == 0 or (self.derivatives and self.risk_estimator.stationary)

    def on(self, problem: Problem) -> RoundPlan:
        """Return the settings of a round of another problem."""
        same = problem is self.trajectory.problem
        return self if same else replace(self, trajectory=replace(self.trajectory, problem=problem))

    def training_only(self) -> RoundPlan:
        """Return the settings of a round that trains, measures no path term and computes no λ-derivative."""
        return replace(self, trajectory=replace(self.trajectory, objective=WITHOUT_PATH), derivatives=False)


class RoundRequest(NamedTuple):
    """A request to run one round.

    Attributes:
        plan: the settings of the round.
        states: the state of every chain at the start.
        hyper: λ. It shares memory with the hyper module if `on_step` changes it.
        step_data_at: returns the data of every chain at step t of the round.
        risk_batches: the rows on which the risk at θ_T is computed. They can be iterated several times.
        drawn: the draws from P_0 if the chains start from θ_0; otherwise None.
        on_step: the online algorithm. It receives the λ-derivative of ‖Δ_t‖ and may change λ in place.
        phase: the first step at which Δ_t is measured; it is less than the stride.
        position: the number of inner steps of the run before this round.
        estimator_inputs: returns the memory and the fresh mini-batches of every chain's estimator; None for a stack.
    """

    plan: RoundPlan
    states: Sequence[InnerState]
    hyper: Params
    step_data_at: StepDataAt
    risk_batches: Iterable[Batch]
    drawn: Sequence[Params] | None = None
    on_step: OnStep | None = None
    phase: int = 0
    position: int = 0
    estimator_inputs: Callable[[], Sequence[EstimatorInputs]] | None = None


class RoundOutcome(NamedTuple):
    """The result of a round.

    Attributes:
        states: the state of every chain at θ_T.
        risk: the mean over chains of the risk at θ_T.
        regularizer: √Y, the root of the sum along the trajectory.
        risk_gradient: the λ-gradient of the risk; empty without derivatives.
        path_gradient: the λ-gradient of √Y; empty without derivatives, without a path term, or in the online algorithm.
        notes: the risk estimator's numbers for the history, as means over chains.
        memory: the tensors that the risk estimator of every chain keeps for its next round.
        stack: the outcome of all rounds that were run together, with a leading axis; None if the round ran alone.
    """

    states: list[InnerState]
    risk: Tensor
    regularizer: Tensor
    risk_gradient: Params
    path_gradient: Params
    notes: Mapping[str, Tensor] = MappingProxyType({})
    memory: Sequence[Params] = ()
    stack: RoundOutcome | None = None

    def gradient(self, zeta: float) -> Params:
        """Return the λ-gradient of J = risk + ζ√Y."""
        return axpy(zeta, self.path_gradient, self.risk_gradient) if self.path_gradient else self.risk_gradient


def mean_outcome(outcomes: Sequence[RoundOutcome]) -> RoundOutcome:
    """Return the mean of J and its gradients over problems that share λ. It has no states."""
    if len(outcomes) == 1:
        return outcomes[0]
    whole = outcomes[0].stack
    if whole is None or len(whole.risk) != len(outcomes) or any(outcome.stack is not whole for outcome in outcomes):
        whole = _stacked(outcomes)
    trees = whole.risk_gradient, whole.path_gradient, whole.notes
    by_risk, by_path, notes = ({name: value.mean(0) for name, value in tree.items()} for tree in trees)
    return RoundOutcome([], whole.risk.mean(), whole.regularizer.mean(), by_risk, by_path, notes)


def _stacked(outcomes: Sequence[RoundOutcome]) -> RoundOutcome:
    """Return several outcomes as one with a leading axis and without states."""
    return RoundOutcome(
        [],
        torch.stack([outcome.risk for outcome in outcomes]),
        torch.stack([outcome.regularizer for outcome in outcomes]),
        stack([outcome.risk_gradient for outcome in outcomes]),
        stack([outcome.path_gradient for outcome in outcomes]),
        stack([dict(outcome.notes) for outcome in outcomes]),
    )
