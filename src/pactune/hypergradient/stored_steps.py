"""The steps of a round with checkpoints: some states are kept, and the steps between them are run again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from pactune.checks import check_count
from pactune.hypergradient.records import InnerState, LinearizedGradient, StepData, StepRecord
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params

__all__ = ["StoredSteps", "check_segment", "last_segment", "root_segment"]


FEW_STEPS = 8  # up to this many steps all graphs are kept, as in a plain unroll: no gradient is computed twice


class _StoredStep(NamedTuple):
    """A step that is kept. Its state is None if the steps before it have to be run again to find it."""

    state: InnerState | None
    data: StepData
    hyper: Params
    linearized: LinearizedGradient | None = None


class StoredSteps:
    """The last steps of a round. A state is kept at every `segment`-th step and at steps whose graph is kept.

    To go back, a segment is run again from its first state. This is exact: mini-batches, noise and the seeds of
    stochastic forwards are part of every step. The second run computes every training gradient inside an autograd
    graph, which the Hessian–vector product of that step needs anyway. So √K checkpoints cost no more time than K.

    Args:
        trajectory: the pure functions.
        segment: the number of steps between two states that are kept.
        depth: the number of last steps that `backwards` can return; None for all.
    """

    def __init__(self, trajectory: Trajectory, segment: int, depth: int | None = None) -> None:
        self.trajectory, self._segment, self._depth = trajectory, segment, depth
        self._steps: deque[_StoredStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def append(self, record: StepRecord) -> None:
        """Keep a step and forget the segments that are too old."""
        keep = len(self._steps) % self._segment == 0 or record.linearized is not None
        linearized = self.trajectory.without_values(record.linearized) if record.linearized is not None else None
        self._steps.append(_StoredStep(record.state if keep else None, record.data, record.hyper, linearized))
        while self._depth is not None and len(self._steps) - self._segment >= self._depth:
            for _ in range(self._segment):
                self._steps.popleft()

    def clear(self) -> None:
        """Forget all steps."""
        self._steps.clear()

    def backwards(self, span: range, *, to_state: bool) -> Iterator[StepRecord]:
        """Yield a range of the steps, the latest first, each with its linearized training gradient.

        Args:
            span: the range of steps, counted from the oldest one that is kept.
            to_state: True if the derivative with respect to the state before the earliest step is requested.
        """
        for begin in reversed(range(0, span.stop, self._segment)):
            if begin + self._segment <= span.start:
                return
            steps = list(islice(self._steps, begin, min(begin + self._segment, span.stop)))
            records = self._run_again(steps, span.start - begin, to_state=to_state)
            self._release(begin, steps)
            while records:
                yield records.pop()

    def _release(self, begin: int, steps: list[_StoredStep]) -> None:
        """Free the graphs, which are used once, and the states that can be computed again."""
        for i, step in enumerate(steps):
            if step.linearized is not None:
                self._steps[begin + i] = step._replace(linearized=None, state=step.state if i == 0 else None)

    def _run_again(self, steps: list[_StoredStep], first: int, *, to_state: bool) -> list[StepRecord]:
        """Run a segment again; return its steps from number `first` on."""
        state, records = steps[0].state, list[StepRecord]()
        for i, step in enumerate(steps):
            state = step.state or state
            assert state is not None
            graph = i > first or (i == first and (to_state or self.trajectory.problem.enters_losses))
            record = StepRecord(state, step.data, step.hyper, step.linearized)
            linearized = step.linearized or self.trajectory.linearize(record, graph=graph)
            if i >= first:
                records.append(record._replace(linearized=self.trajectory.without_values(linearized)))
            if i + 1 < len(steps) and steps[i + 1].state is None:
                state = self.trajectory.advance(state, step.hyper, step.data, linearized.observation())
        return records


def last_segment(begin: int, segment: int, inner_steps: int) -> int:
    """Return the first step of the last segment of a round; the first segment starts at step `begin`."""
    return begin + segment * ((inner_steps - 1 - begin) // segment)


def root_segment(segment: int | None, steps: int) -> int:
    """Return the length of a segment: `segment`, or if it is None all of a few steps and ⌈√steps⌉ of more."""
    if segment is not None:
        return segment
    return max(steps, 1) if steps <= FEW_STEPS else math.isqrt(steps - 1) + 1


def check_segment(segment: object) -> None:
    """Raise unless the length of a segment is None or a positive whole number."""
    check_count("segment", segment, none="for the square root")
