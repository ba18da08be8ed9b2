"""The steps of a round kept sparsely: a state now and then, and the steps between are run again on the way back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from pactune.checks import check_count
from pactune.hypergradient.records import InnerState, Linear, Record, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params

__all__ = ["Segments", "check_segment", "last_segment", "root_segment"]


class _Kept(NamedTuple):
    """A step with its state, or with None where the state is found by running the steps before it."""

    state: InnerState | None
    data: StepData
    hyper: Params
    linear: Linear | None = None


class Segments:
    """The last steps of a round; the state is kept at every `segment`-th only, and where the gradient's graph is.

    On the way back a segment is run again from its first state. This is exact: mini-batches, noise and the seeds of
    stochastic forwards are part of every step. Running it again computes every training gradient inside an autograd
    graph, which the Hessian–vector product of that step needs anyway, so that √K checkpoints cost no more time than K.

    Args:
        trajectory: the pure functions.
        segment: steps between two states that are kept.
        depth: how many steps can be asked for, None for all.
    """

    def __init__(self, trajectory: Trajectory, segment: int, depth: int | None = None) -> None:
        self.trajectory, self._segment, self._depth = trajectory, segment, depth
        self._steps: deque[_Kept] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def append(self, record: Record) -> None:
        """Keep a step and forget the segments that are too old."""
        keep = len(self._steps) % self._segment == 0 or record.linear is not None
        linear = self.trajectory.without_values(record.linear) if record.linear is not None else None
        self._steps.append(_Kept(record.state if keep else None, record.data, record.hyper, linear))
        while self._depth is not None and len(self._steps) - self._segment >= self._depth:
            for _ in range(self._segment):
                self._steps.popleft()

    def clear(self) -> None:
        """Forget all steps."""
        self._steps.clear()

    def backwards(self, span: range, *, to_state: bool) -> Iterator[Record]:
        """Return some of the steps, the latest first, each with its linearized training gradient.

        Args:
            span: their numbers among those that are kept, the oldest being 0.
            to_state: whether the derivative with respect to the state before the earliest of them is wanted.
        """
        for begin in reversed(range(0, span.stop, self._segment)):
            if begin + self._segment <= span.start:
                return
            steps = list(islice(self._steps, begin, min(begin + self._segment, span.stop)))
            records = self._run_again(steps, span.start - begin, to_state=to_state)
            self._release(begin, steps)
            while records:
                yield records.pop()

    def _release(self, begin: int, steps: list[_Kept]) -> None:
        """Let go of graphs, which are used once, and of states that can be found again."""
        for i, step in enumerate(steps):
            if step.linear is not None:
                self._steps[begin + i] = step._replace(linear=None, state=step.state if i == 0 else None)

    def _run_again(self, steps: list[_Kept], first: int, *, to_state: bool) -> list[Record]:
        """Return the steps of a segment from number `first` on."""
        state, records = steps[0].state, list[Record]()
        for i, step in enumerate(steps):
            state = step.state or state
            assert state is not None
            graph = i > first or (i == first and (to_state or self.trajectory.problem.enters_losses))
            record = Record(state, step.data, step.hyper, step.linear)
            linear = step.linear or self.trajectory.linearize(record, graph=graph)
            if i >= first:
                records.append(record._replace(linear=self.trajectory.without_values(linear)))
            if i + 1 < len(steps) and steps[i + 1].state is None:
                state = self.trajectory.advance(state, step.hyper, step.data, linear.observation())
        return records


def last_segment(begin: int, segment: int, inner_steps: int) -> int:
    """Return where the last segment of a round begins, with segments counted from step `begin`."""
    return begin + segment * ((inner_steps - 1 - begin) // segment)


def root_segment(segment: int | None, steps: int) -> int:
    """Return the segment's length, ⌈√steps⌉ unless it is given."""
    return segment if segment is not None else math.isqrt(max(steps - 1, 0)) + 1


def check_segment(segment: object) -> None:
    """Raise unless the length of a segment is None or a positive whole number."""
    check_count("segment", segment, none="for the square root")
