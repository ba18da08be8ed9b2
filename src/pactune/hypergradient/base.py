"""The interface of an estimator, which finds λ-derivatives along a trajectory while the trajectory runs.

`Estimator` holds the settings. `ChainEstimator` works on one chain of one round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.adjoints import pull_back_initial
from pactune.hypergradient.records import (
    Adjoint,
    EstimatorInputs,
    InnerState,
    Observation,
    StepRecord,
    ValueAndGradient,
)
from pactune.hypergradient.stored_steps import StoredSteps
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params, add, add_, zeros_like

__all__ = ["ChainContext", "ChainEstimator", "Estimator", "pull_back_steps"]


@dataclass
class ChainContext:
    """Facts about a chain that its estimators may read.

    Attributes:
        hyper: λ during the round.
        drawn: the draw from P_0 if the round started from θ_0; None if it continues an earlier round.
        inner_steps: T.
        length: the number of steps of the round so far.
        inputs: the memory and the fresh mini-batches of an estimator; None if the estimators use none.
    """

    hyper: Params
    drawn: Params | None
    inner_steps: int
    length: int = 0
    inputs: EstimatorInputs | None = None

    def advance(self, steps: int) -> None:
        """Count steps that the chain has taken."""
        self.length += steps


class ChainEstimator(ABC):
    """An estimator at work on one chain of one round.

    At every step the chain calls `observe` or `skip_summand`, and then `add_step`. An engine may run the first steps on
    its own; the chain then calls `skip_steps` once.

    Attributes:
        by_params: True if `observe` needs the θ-derivative of every summand.
    """

    by_params: bool = False

    @property
    def notes(self) -> Params:
        """Numbers about the last `risk_gradient`. Each one is a column of the history."""
        return {}

    @property
    def memory(self) -> Params:
        """Tensors for the next round of this chain, by the names of θ; empty if the estimator remembers nothing."""
        return {}

    @abstractmethod
    def observe(self, record: StepRecord, observation: Observation) -> Params | None:
        """Add the summand at θ_t; return its λ-derivative if it is known at once."""

    def skip_summand(self, record: StepRecord) -> None:
        """Note that no summand is measured at θ_t."""

    def add_step(self, record: StepRecord) -> None:
        """Keep what is needed of a finished step."""

    def skip_steps(self, direct_sum: Params) -> None:
        """Note that an engine ran some steps.

        Args:
            direct_sum: the sum of the direct λ-derivatives of all summands so far; empty if it was not computed.
        """

    @property
    def keeps_graph(self) -> bool:
        """True if `risk_gradient` differentiates the training gradient of the next step first.

        If the step measures nothing, the chain then keeps the autograd graph of this gradient.
        """
        return False

    @abstractmethod
    def path_gradient(self) -> Params:
        """Return the λ-derivative of Σ_t q_t."""

    @abstractmethod
    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        """Return the λ-derivative of the risk at θ_T."""


class Estimator(ABC):
    """The settings of an estimator.

    To add one, subclass, and add a row to the conformance table of the tests.

    Attributes:
        online: True if `observe` returns the λ-derivative of the summand at once, as the online algorithm needs it.
        for_path: False if the estimator cannot differentiate the regularizer.
        direct: True if only the direct dependence of each summand on λ is differentiated.
        stackable: True if the estimator works on many runs at once, with a leading axis in every tensor. An estimator
            with a memory or with fresh mini-batches is not.
        first_order: True if the estimator never differentiates a training gradient.
        stationary: True if the estimator takes θ_T for a stationary point of training, where λ acts through R_T alone.
        remembers: True if the estimator keeps tensors from round to round.
        fresh_batches: the number of fresh training mini-batches that a round reads besides those of the steps.
        takes_prox: False if the estimator needs a smooth training risk.
    """

    online: bool = False
    for_path: bool = True
    direct: bool = False
    stackable: bool = False
    first_order: bool = False
    stationary: bool = False
    remembers: bool = False
    fresh_batches: int = 0
    takes_prox: bool = True

    @abstractmethod
    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""

    @abstractmethod
    def reach(self, inner_steps: int) -> int:
        """Return the number of steps of the dynamics that the estimator differentiates through."""

    @abstractmethod
    def anchor(self, t: int, inner_steps: int) -> int:
        """Return the step whose iterate is held fixed when a function of θ_t is differentiated; t ≤ T."""

    def recordable(self, problem: InnerProblem, round_index: int | None) -> bool:
        """Return True if a round makes the same tensor operations whatever its numbers are, so that it can be recorded.

        Args:
            problem: the problem.
            round_index: the number of rounds of the run before this one; None for a round that belongs to no run.
        """
        return self.stackable

    def concern(self, notes: Mapping[str, float | Tensor], risk: float) -> str | None:
        """Return why the gradient of the risk is far off, judged by the notes of a round; None if it is not."""
        return None

    def skippable_steps(self, inner_steps: int) -> int:
        """Return the number of first steps that the λ-derivative of the risk at θ_T does not need."""
        return 0

    def unrolled_steps(self, inner_steps: int) -> int:
        """Return the number of last steps that the chain may keep in one autograd graph, in place of the estimator.

        It is 0 if the estimator finds the λ-derivative of the risk in another way.
        """
        return 0

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise a `SettingError` if the estimator cannot work with these settings.

        Args:
            role: the name of the setting, for messages.
            inner_steps: T.
            dynamics: the inner dynamics.
            count: the number of hyperparameters.
        """
        if not dynamics.differentiable and self.reach(inner_steps) > 1:
            raise SettingError(
                f"`{role}={self}` differentiates through {self.reach(inner_steps)} steps, which an optimizer of "
                "torch.optim does not allow; use SGD, Adam or Langevin as `inner`, or Truncated(0) or Truncated(1)"
            )


def pull_back_steps(
    context: ChainContext,
    steps: StoredSteps,
    span: range,
    adjoint: Adjoint,
    *,
    to_start: bool,
    sources: Sequence[Params] = (),
) -> Params:
    """Pull an adjoint back through several steps; return the λ-derivative.

    Args:
        context: λ, and the draw from P_0.
        steps: the steps that are kept.
        span: the range of steps to go through, counted from the oldest one that is kept.
        adjoint: the derivative with respect to the state after the latest step.
        to_start: True if the earliest step starts at θ_0. If θ_0 is a function of λ, the derivative then continues
            into it.
        sources: derivatives to add at the iterate before each step.
    """
    trajectory, total = steps.trajectory, zeros_like(context.hyper)
    into_start = to_start and context.drawn is not None and trajectory.problem.has_initial
    for i, record in zip(reversed(span), steps.backwards(span, to_state=into_start), strict=True):
        by_hyper, before = trajectory.pull_back(record, adjoint, to_state=i > span.start or into_start)
        if by_hyper:
            add_(total, by_hyper)
        if before is not None:
            adjoint = Adjoint(add(before.params, sources[i]), before.slots) if sources else before
    if into_start and context.drawn is not None:
        add_(total, pull_back_initial(trajectory.problem, context.drawn, context.hyper, adjoint.params))
    return total
