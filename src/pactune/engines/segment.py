"""A few inner steps as one function from tensors to tensors, which can be recorded once and run many times."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.engines.layout import TensorList, TreeLayout, flatten
from pactune.hypergradient.records import GradientPair, InnerState, Observation, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.nested import other_leaf
from pactune.problem.data import Batch
from pactune.rounds.chain import Carry
from pactune.rounds.engine import ORDERED, RoundChain
from pactune.rounds.online import OnlineRule, OnlineState, root_gradients
from pactune.trees import Params, add, add_squares

__all__ = ["Segment", "SegmentData", "SegmentReader", "flat_function", "recording_obstacle"]


def recording_obstacle(round_chain: RoundChain, t: int = 0) -> str | None:
    """Return why the steps of a chain cannot be recorded, judged by the data of step t; None if they can."""
    trajectory = round_chain.chain.plan.trajectory
    if trajectory.stochastic:
        return "a forward draws random numbers, which are seeded step by step"
    if not trajectory.dynamics.differentiable:
        return "an optimizer of torch.optim keeps a state of its own"
    if trajectory.ranks.shards > 1:
        return "ranks that share a mini-batch talk to each other at every step"
    if not trajectory.problem.replayable:
        return ORDERED
    data = round_chain.step_data_at(t)
    for role, batch in (("train", data.train), ("valid", data.valid)):
        if kind := other_leaf(batch.data):
            return f"a batch of `{role}` holds a {kind.__name__} and not tensors alone"
    return None


class SegmentData(NamedTuple):
    """The data of the steps of a segment.

    Attributes:
        train: a training mini-batch per step, or one that all steps share.
        valid: a validation mini-batch per step, or one that all steps share.
        noise: ξ_t of every step; empty without noise.
        numbers: the dynamics' numbers, each of shape (steps,).
    """

    train: list[Batch]
    valid: list[Batch]
    noise: list[Params]
    numbers: dict[str, Tensor]

    @property
    def even(self) -> bool:
        """True if the mini-batches of all steps have the same number of rows.

        The last mini-batch of an epoch may be smaller. Each place that it may have would need a recording of its own.
        """
        return len({batch.rows for batch in self.train}) == 1 == len({batch.rows for batch in self.valid})

    def single(self, t: int) -> SegmentData:
        """Return the data of step t as a segment of one step."""
        return SegmentData(
            [self.train[t % len(self.train)]],
            [self.valid[t % len(self.valid)]],
            self.noise[t : t + 1],
            {name: column[t : t + 1] for name, column in self.numbers.items()},
        )

    def step_data(self, steps: int) -> list[StepData]:
        """Return the data of every step."""
        columns = {name: column.unbind() for name, column in self.numbers.items()}
        return [
            StepData(
                self.train[t % len(self.train)],
                self.valid[t % len(self.valid)],
                self.noise[t] if self.noise else None,
                None,
                {name: column[t] for name, column in columns.items()},
            )
            for t in range(steps)
        ]


class SegmentReader:
    """Reads the data of a chain in a round, segment by segment.

    Args:
        round_chain: the chain and its data.
        start: the first step that is read.
        stop: the step after the last one that is read.
    """

    def __init__(self, round_chain: RoundChain, start: int, stop: int) -> None:
        self._step_data_at, self._start = round_chain.step_data_at, start
        trajectory, first = round_chain.chain.plan.trajectory, round_chain.chain.carry.state.step
        table = [trajectory.dynamics.numbers(first + t) for t in range(stop - start)]
        problem = trajectory.problem
        self._constant = problem.steady and not trajectory.dynamics.uses_noise  # every step has the same data
        self._known: dict[int, tuple[TensorList, TreeLayout]] = {}
        self._numbers = {
            name: _column(tuple([row[name] for row in table]), problem.dtype, problem.device)
            for name in (table[0] if table else ())
        }

    def read_flat(self, start: int, steps: int) -> tuple[TensorList, TreeLayout]:
        """Return `read` as a flat list. If every step has the same data, only the numbers are looked up again."""
        if steps not in self._known:
            flat, layout = flatten(self.read(start, steps))
            if not self._constant:
                return flat, layout
            self._known[steps] = (flat[: len(flat) - len(self._numbers)], layout)
        flat, layout = self._known[steps]
        return flat + list(self._columns(start, steps).values()), layout

    def read_even(self, start: int, steps: int) -> tuple[TensorList, TreeLayout, int]:
        """Return `read_flat` and the number of steps: a single one if the mini-batches of the steps differ in size."""
        if self._constant or steps == 1:
            return *self.read_flat(start, steps), steps
        data = self.read(start, steps)
        if not data.even:
            return *self.read_flat(start, 1), 1
        return *flatten(data), steps

    def read(self, start: int, steps: int) -> SegmentData:
        """Return the data of `steps` steps, starting at step `start`."""
        step_data = [self._step_data_at(t) for t in range(start, start + (1 if self._constant else steps))]
        return SegmentData(
            _deduplicated([data.train for data in step_data]),
            _deduplicated([data.valid for data in step_data]),
            [data.noise for data in step_data if data.noise is not None],
            self._columns(start, steps),
        )

    def _columns(self, start: int, steps: int) -> dict[str, Tensor]:
        first = start - self._start
        return {name: column[first : first + steps] for name, column in self._numbers.items()}


@lru_cache(maxsize=8)  # the numbers are often those of the last round
def _column(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)


def _deduplicated(batches: list[Batch]) -> list[Batch]:
    """Return one batch if all are the same object, as full batches are."""
    return batches[:1] if all(batch is batches[0] for batch in batches) else batches


GradientPairFunction = Callable[[InnerState, Params, StepData], GradientPair]
StepFromPair = Callable[[Carry, Params, StepData, GradientPair], Carry]


class Segment:
    """A few steps of a chain as a pure function of (carry, λ, data).

    Args:
        trajectory: the pure functions of a step.
        measured: one flag per step, True if Δ_t is measured.
        sums_derivatives: True if the direct λ-derivatives are summed.
        online: moves λ, which is then in the carry, after every measured step.
        stride: Δ_t is measured at every `stride`-th step.
        gradient_pair: replaces `Trajectory.gradient_pair`.
        step_from_pair: replaces the method `step_from_pair`.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        measured: tuple[bool, ...],
        *,
        sums_derivatives: bool,
        online: OnlineRule | None = None,
        stride: int = 1,
        gradient_pair: GradientPairFunction | None = None,
        step_from_pair: StepFromPair | None = None,
    ) -> None:
        self.trajectory, self.measured, self.sums_derivatives = trajectory, measured, sums_derivatives
        self._online, self._stride = online, stride
        self._rows = trajectory.problem.train.rows, trajectory.problem.valid.rows  # those of a task may change
        self._gradient_pair = gradient_pair or trajectory.gradient_pair
        self._step_from_pair = step_from_pair or self.step_from_pair

    @classmethod
    def of(cls, round_chain: RoundChain, start: int, steps: int) -> Segment:
        """Return `steps` steps of a chain, starting at step `start` of its round."""
        plan = round_chain.chain.plan
        sums_derivatives = bool(plan.derivatives and plan.trajectory.objective.has_path)
        measured = tuple(round_chain.chain.measures(start + i) for i in range(steps))
        online = None if round_chain.online is None else round_chain.online.rule
        return cls(plan.trajectory, measured, sums_derivatives=sums_derivatives, online=online, stride=plan.path_stride)

    def like(
        self,
        *,
        trajectory: Trajectory | None = None,
        measured: tuple[bool, ...] | None = None,
        gradient_pair: GradientPairFunction | None = None,
        step_from_pair: StepFromPair | None = None,
    ) -> Segment:
        """Return a segment with other parts, and everything else as here."""
        return Segment(
            trajectory or self.trajectory,
            self.measured if measured is None else measured,
            sums_derivatives=self.sums_derivatives,
            online=self._online,
            stride=self._stride,
            gradient_pair=gradient_pair,
            step_from_pair=step_from_pair,
        )

    def __call__(self, carry: Carry, hyper: Params, segment_data: SegmentData) -> Carry:
        """Run the steps."""
        for data, measured in zip(segment_data.step_data(len(self.measured)), self.measured, strict=True):
            carry = self._step(carry, hyper, data, measured=measured)
        return carry

    def _step(self, carry: Carry, hyper: Params, data: StepData, *, measured: bool) -> Carry:
        present = _present(carry, hyper)
        if measured and self.trajectory.pair_suffices(by_hyper=self.sums_derivatives):
            return self._step_from_pair(carry, hyper, data, self._gradient_pair(carry.state, present, data))
        if measured:
            by_hyper = self.sums_derivatives
            observation = self.trajectory.observe(carry.state, present, data, by_hyper=by_hyper, by_params=False)
        else:
            observation = self.trajectory.observe_gradient(carry.state, present, data)
        return self._advance(carry, present, data, observation)

    def step_from_pair(self, carry: Carry, hyper: Params, data: StepData, pair: GradientPair) -> Carry:
        """Return the carry after a step, given its two gradients."""
        present = _present(carry, hyper)
        if carry.squares:
            observation = Observation(pair.gradient, pair.buffers)
            carry = carry._replace(squares=add_squares(carry.squares, carry.state.params))
        else:
            by_hyper = self.sums_derivatives
            observation = self.trajectory.measure_pair(carry.state, present, data, pair, by_hyper=by_hyper)
        return self._advance(carry, present, data, observation)

    def _advance(self, carry: Carry, hyper: Params, data: StepData, observation: Observation) -> Carry:
        total = carry.total if observation.summand is None else carry.total + observation.summand
        sums = carry.sums if observation.by_hyper is None else add(carry.sums, observation.by_hyper)
        state = self.trajectory.advance(carry.state, hyper, data, observation)
        state = state._replace(step=carry.state.step)  # the engine counts the steps
        return Carry(state, total, sums, carry.squares, self._moved(carry.online, observation))

    def _moved(self, online: OnlineState | None, observation: Observation) -> OnlineState | None:
        """Return λ after the step: in the online algorithm a measured step moves it."""
        if online is None or self._online is None or observation.summand is None:
            return online
        (gradient,) = root_gradients(self._stride, [(observation.summand, observation.by_hyper)], online.hyper)
        with torch.no_grad():
            return self._online.step(online, gradient)

    def is_same_function(self, other: object) -> bool:
        """Return True if two segments compute the same function."""
        if not isinstance(other, Segment):
            return False
        a, b = self.trajectory, other.trajectory
        same = a.problem is b.problem and a.objective is b.objective and a.default_hyper is b.default_hyper
        flags = self.measured == other.measured and self.sums_derivatives == other.sums_derivatives
        flags = flags and self._rows == other._rows and (self._online, self._stride) == (other._online, other._stride)
        return same and a.dynamics == b.dynamics and flags


def _present(carry: Carry, hyper: Params) -> Params:
    """Return λ of the next step, which is in the carry in the online algorithm."""
    return hyper if carry.online is None else carry.online.hyper


def flat_function(segment: Callable[..., Any], layouts: tuple[TreeLayout, ...]) -> Callable[..., TensorList]:
    """Return a segment as a function of one flat list of tensors: those of the carry, of λ and of the data."""
    ends = [sum(len(layout.tensors) for layout in layouts[: i + 1]) for i in range(3)]

    def function(*tensors: Tensor) -> TensorList:
        parts = tensors[: ends[0]], tensors[ends[0] : ends[1]], tensors[ends[1] :]
        return flatten(segment(*(layout.restore(part) for layout, part in zip(layouts, parts, strict=True))))[0]

    return function
