"""A few inner steps as one function from tensors to tensors, which can be recorded once and run many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pactune.hypergradient.records import GradientPair, InnerState, Observation, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.data import Batch
from pactune.rounds.chain import Carry
from pactune.rounds.engine import ORDERED, RoundChain
from pactune.trees import Params, add

__all__ = ["Flat", "Segment", "SegmentData", "SegmentReader", "Shape", "flatten", "refusal"]

Flat = list[Tensor]


def refusal(round_chain: RoundChain) -> str | None:
    """Return why the steps of a chain cannot be recorded, None when they can."""
    trajectory = round_chain.chain.plan.trajectory
    if trajectory.stochastic:
        return "a forward draws random numbers, which are seeded step by step"
    if not trajectory.dynamics.differentiable:
        return "an optimizer of torch.optim keeps a state of its own"
    if trajectory.ranks.shards > 1:
        return "ranks that share a mini-batch talk to each other at every step"
    if not trajectory.problem.replayable:
        return ORDERED
    data = round_chain.step_data(0)
    for role, batch in (("train", data.train), ("valid", data.valid)):
        strange = [leaf for leaf in pytree.tree_leaves(batch.data) if not isinstance(leaf, Tensor)]
        if strange:
            return f"a batch of `{role}` holds a {type(strange[0]).__name__} and not tensors alone"
    return None


class Shape(NamedTuple):
    """How a flat list of tensors is put together again; calls of equal shapes can share a recording."""

    spec: pytree.TreeSpec
    constants: tuple[tuple[int, Any], ...]
    tensors: tuple[tuple[torch.Size, torch.dtype], ...]

    def restore(self, flat: Sequence[Tensor]) -> Any:
        """Return the nested value of a flat list."""
        leaves: list[Any] = list(flat)
        for position, constant in self.constants:
            leaves.insert(position, constant)
        return pytree.tree_unflatten(leaves, self.spec)


def flatten(value: Any) -> tuple[Flat, Shape]:
    """Return the tensors of a nested value, and how to put it together again."""
    leaves, spec = pytree.tree_flatten(value)
    flat = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    constants = tuple((i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor))
    return flat, Shape(spec, constants, tuple((tensor.shape, tensor.dtype) for tensor in flat))


class SegmentData(NamedTuple):
    """What the steps of a segment meet.

    Attributes:
        train: a mini-batch per step, or one that all steps share.
        valid: the same, of the validation set.
        noise: ξ_t of every step, empty without noise.
        numbers: the dynamics' numbers, each of shape (steps,).
    """

    train: list[Batch]
    valid: list[Batch]
    noise: list[Params]
    numbers: dict[str, Tensor]

    def single(self, t: int) -> SegmentData:
        """Return what one of the steps meets."""
        return SegmentData(
            [self.train[t % len(self.train)]],
            [self.valid[t % len(self.valid)]],
            self.noise[t : t + 1],
            {name: column[t : t + 1] for name, column in self.numbers.items()},
        )

    def step_data(self, steps: int) -> list[StepData]:
        """Return what every step meets."""
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
    """What a chain meets in a round, segment by segment.

    Args:
        round_chain: the chain and its step_data.
        start: the first step of the round that is asked for.
        stop: the step after the last one.
    """

    def __init__(self, round_chain: RoundChain, start: int, stop: int) -> None:
        self._ticks, self._start = round_chain.step_data, start
        trajectory, first = round_chain.chain.plan.trajectory, round_chain.chain.carry.state.step
        table = [trajectory.dynamics.numbers(first + t) for t in range(stop - start)]
        problem = trajectory.problem
        self._steady = problem.steady and not trajectory.dynamics.uses_noise
        self._known: dict[int, tuple[Flat, Shape]] = {}
        self._numbers = {
            name: torch.tensor([row[name] for row in table], dtype=problem.dtype, device=problem.device)
            for name in (table[0] if table else ())
        }

    def flat(self, start: int, steps: int) -> tuple[Flat, Shape]:
        """Return `take` as a flat list; where all steps meet the same, only the numbers are looked up."""
        if steps not in self._known:
            flat, shape = flatten(self.take(start, steps))
            if not self._steady:
                return flat, shape
            self._known[steps] = (flat[: len(flat) - len(self._numbers)], shape)
        flat, shape = self._known[steps]
        return flat + list(self._columns(start, steps).values()), shape

    def take(self, start: int, steps: int) -> SegmentData:
        """Return what the steps from `start` on meet."""
        step_data = [self._ticks(t) for t in range(start, start + (1 if self._steady else steps))]
        return SegmentData(
            _once([data.train for data in step_data]),
            _once([data.valid for data in step_data]),
            [data.noise for data in step_data if data.noise is not None],
            self._columns(start, steps),
        )

    def _columns(self, start: int, steps: int) -> dict[str, Tensor]:
        first = start - self._start
        return {name: column[first : first + steps] for name, column in self._numbers.items()}


def _once(batches: list[Batch]) -> list[Batch]:
    """Return one batch where all are the same object, as a full batch is."""
    return batches[:1] if all(batch is batches[0] for batch in batches) else batches


FindPair = Callable[[InnerState, Params, StepData], GradientPair]
Finish = Callable[[Carry, Params, StepData, GradientPair], Carry]


class Segment:
    """A few steps of a chain as a pure function of (carry, λ, what they meet).

    Args:
        trajectory: the pure functions.
        measured: for every step, whether Δ_t is measured.
        derived: whether the direct λ-derivatives are summed.
        pair: another way to find the two gradients of a step.
        finish: another way to do what `finish` does.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        measured: tuple[bool, ...],
        *,
        derived: bool,
        pair: FindPair | None = None,
        finish: Finish | None = None,
    ) -> None:
        self.trajectory, self.measured, self.derived = trajectory, measured, derived
        self._pair, self._finish = pair or trajectory.pair, finish or self.finish

    @classmethod
    def of(cls, round_chain: RoundChain, start: int, steps: int) -> Segment:
        """Return the steps of a chain's round from `start` on."""
        plan = round_chain.chain.plan
        derived = bool(plan.derivatives and plan.trajectory.objective.has_path)
        measured = tuple(round_chain.chain.measures(start + i) for i in range(steps))
        return cls(plan.trajectory, measured, derived=derived)

    def __call__(self, carry: Carry, hyper: Params, outside: SegmentData) -> Carry:
        """Run the steps."""
        for data, measured in zip(outside.step_data(len(self.measured)), self.measured, strict=True):
            carry = self._step(carry, hyper, data, measured=measured)
        return carry

    def _step(self, carry: Carry, hyper: Params, data: StepData, *, measured: bool) -> Carry:
        if measured and self.trajectory.parts(by_hyper=self.derived):
            return self._finish(carry, hyper, data, self._pair(carry.state, hyper, data))
        if measured:
            seen = self.trajectory.observe(carry.state, hyper, data, by_hyper=self.derived, by_params=False)
        else:
            seen = self.trajectory.look(carry.state, hyper, data)
        return self._moved(carry, hyper, data, seen)

    def finish(self, carry: Carry, hyper: Params, data: StepData, pair: GradientPair) -> Carry:
        """Return the carry after a step, from its two gradients."""
        seen = self.trajectory.judge(carry.state, hyper, data, pair, by_hyper=self.derived)
        return self._moved(carry, hyper, data, seen)

    def _moved(self, carry: Carry, hyper: Params, data: StepData, seen: Observation) -> Carry:
        total = carry.total if seen.summand is None else carry.total + seen.summand
        sums = carry.sums if seen.by_hyper is None else add(carry.sums, seen.by_hyper)
        moved = self.trajectory.advance(carry.state, hyper, data, seen)
        return Carry(moved._replace(step=carry.state.step), total, sums)  # the count lives outside

    def same(self, other: Segment) -> bool:
        """Whether another segment is the same function."""
        a, b = self.trajectory, other.trajectory
        same = a.problem is b.problem and a.objective is b.objective and a.default_hyper is b.default_hyper
        return same and a.dynamics == b.dynamics and self.measured == other.measured and self.derived == other.derived
