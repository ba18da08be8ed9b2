"""What an estimator is: a way to find λ-derivatives along a trajectory while it is being run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.records import Adjoint, InnerState, Observation, Record, ValueAndGradient
from pactune.hypergradient.segments import Segments
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, add, add_, zeros_like

__all__ = ["ChainContext", "ChainEstimator", "Estimator", "sweep"]


@dataclass
class ChainContext:
    """What every estimator of a round may look up.

    Attributes:
        hyper: λ during the round.
        drawn: the draw from P_0 when the round started from θ_0, None when it goes on from an earlier round.
        inner_steps: T.
        length: number of steps of the round so far.
    """

    hyper: Params
    drawn: Params | None
    inner_steps: int
    length: int = 0


class ChainEstimator(ABC):
    """An estimator at work on one chain of one round.

    Attributes:
        by_params: whether `observe` needs the θ-derivative of every summand.
    """

    by_params: bool = False

    @property
    def notes(self) -> Params:
        """Numbers about the last `risk`, one column of the history each; none by default."""
        return {}

    @abstractmethod
    def observe(self, record: Record, seen: Observation) -> Params | None:
        """Take in the summand at θ_t; return its λ-derivative where it is known at once."""

    def moved(self, record: Record) -> None:
        """Take in that the step was made."""

    def skipped(self, record: Record) -> None:
        """Take in that there is no summand at θ_t."""

    def jumped(self, direct: Params) -> None:
        """Take in that steps were made out of sight; `direct`, unless empty, is the sum of all direct derivatives."""

    @property
    def keeps_graph(self) -> bool:
        """Whether the next step is among those whose training gradient `risk` differentiates first.

        Where nothing else is measured, the engine then computes it inside an autograd graph and hands that over.
        """
        return False

    @abstractmethod
    def path(self) -> Params:
        """Return the λ-derivative of Σ_t q_t."""

    @abstractmethod
    def risk(self, final: ValueAndGradient, state: InnerState) -> Params:
        """Return the λ-derivative of the risk at θ_T."""


class Estimator(ABC):
    """Settings of an estimator; `start` puts it to work.

    To add one, subclass, and add a row to the conformance table of the tests.
    """

    online: bool = False
    for_path: bool = True
    direct: bool = False  # of the regularizer, only the direct dependence of each summand on λ is differentiated
    stackable: bool = False  # works on many runs at once, with a leading axis in every tensor

    @abstractmethod
    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator at work on one chain of one round."""

    @abstractmethod
    def reach(self, inner_steps: int) -> int:
        """Return through how many steps of the dynamics it differentiates."""

    @abstractmethod
    def anchor(self, t: int, inner_steps: int) -> int:
        """Return the step whose iterate is held fixed when a function of θ_t is differentiated; t ≤ T."""

    def concern(self, notes: Mapping[str, float | Tensor], risk: float) -> str | None:
        """Return why the gradient of the risk is far off, from the notes of a round; None where nothing says so."""
        return None

    def unseen(self, inner_steps: int) -> int:
        """Return how many first steps of a round it need not see when it differentiates the risk at θ_T."""
        return 0

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise a `SettingError` where the estimator cannot work.

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


def sweep(
    context: ChainContext,
    steps: Segments,
    span: range,
    adjoint: Adjoint,
    *,
    to_start: bool,
    sources: Sequence[Params] = (),
) -> Params:
    """Take an adjoint back through some steps; return the λ-derivative.

    Args:
        context: λ and how the round began.
        steps: the steps that are kept.
        span: the numbers of the steps to go through, among those that are kept.
        adjoint: derivative with respect to the state after the latest.
        to_start: whether the earliest starts at θ_0; where that is a function of λ, the sweep goes on into it.
        sources: derivatives that join at the iterate before each step.
    """
    trajectory, total = steps.trajectory, zeros_like(context.hyper)
    into_start = to_start and context.drawn is not None and trajectory.problem.has_initial
    for i, record in zip(reversed(span), steps.backwards(span, to_state=into_start), strict=True):
        by_hyper, before = trajectory.pull_back(record, adjoint, to_state=i > span.start or into_start)
        add_(total, by_hyper)
        if before is not None:
            adjoint = Adjoint(add(before.params, sources[i]), before.slots) if sources else before
    if into_start and context.drawn is not None:
        add_(total, trajectory.pull_back_initial(context.drawn, context.hyper, adjoint.params))
    return total
