"""What an estimator is: a way to find λ-derivatives along a trajectory while it is being run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.trajectory import Adjoint, InnerState, Observation, Record, Trajectory, ValueAndGradient
from pactune.trees import Params, add, zeros_like

__all__ = ["Estimator", "Running", "Tape", "sweep"]


@dataclass
class Tape:
    """The last few steps of a round, and how the round began.

    Attributes:
        hyper: λ during the round.
        depth: how many steps are kept.
        drawn: the draw from P_0 when the round started from θ_0, None when it goes on from an earlier round.
        length: number of steps of the round so far.
    """

    hyper: Params
    depth: int
    drawn: Params | None
    length: int = 0
    records: deque[Record] = field(default_factory=deque)

    def append(self, record: Record) -> None:
        """Keep a step and forget what is too old."""
        self.length += 1
        if self.depth:
            self.records.append(record)
            while len(self.records) > self.depth:
                self.records.popleft()


class Running(ABC):
    """An estimator at work on one chain of one round.

    Attributes:
        by_params: whether `observe` needs the θ-derivative of every summand.
    """

    by_params: bool = False

    @abstractmethod
    def observe(self, record: Record, seen: Observation) -> Params | None:
        """Take in the summand at θ_t; return its λ-derivative where it is known at once."""

    def moved(self, record: Record) -> None:
        """Take in that the step was made."""

    def skipped(self, record: Record) -> None:
        """Take in that there is no summand at θ_t."""

    def jumped(self, direct: Params) -> None:
        """Take in that steps were made out of sight; `direct`, unless empty, is the sum of all direct derivatives."""

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
    def start(self, trajectory: Trajectory, tape: Tape) -> Running:
        """Return the estimator at work on one chain of one round."""

    @abstractmethod
    def reach(self, inner_steps: int) -> int:
        """Return through how many steps of the dynamics it differentiates."""

    @abstractmethod
    def anchor(self, t: int, inner_steps: int) -> int:
        """Return the step whose iterate is held fixed when a function of θ_t is differentiated; t ≤ T."""

    def unseen(self, inner_steps: int) -> int:
        """Return how many first steps of a round it need not see when it differentiates the risk at θ_T."""
        return 0

    def memory(self, inner_steps: int) -> int:
        """Return how many past steps the tape must keep."""
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


def sweep(trajectory: Trajectory, tape: Tape, adjoint: Adjoint, depth: int) -> Params:
    """Take an adjoint of the present state back through the last `depth` steps; return the λ-derivative.

    Where the sweep covers the whole round and θ_0 is a function of λ, it goes on into θ_0.
    """
    total = zeros_like(tape.hyper)
    count = min(depth, len(tape.records))
    to_start = depth >= tape.length and tape.drawn is not None and trajectory.problem.has_initial
    for i in range(count):
        record = tape.records[-1 - i]
        to_state = i < count - 1 or to_start
        by_hyper, before = trajectory.pull_back(record, adjoint, to_state=to_state)
        total = add(total, by_hyper)
        adjoint = before or adjoint
    if to_start and tape.drawn is not None:
        total = add(total, trajectory.pull_back_initial(tape.drawn, tape.hyper, adjoint.params))
    return total
