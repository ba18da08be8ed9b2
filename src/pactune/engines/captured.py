"""The captured engine: many inner steps as one CUDA graph, replayed without Python and without launch gaps."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pactune.engines.joint_gradients import JointGradients
from pactune.engines.segment import Flat, Segment, SegmentData, SegmentReader, Shape, flatten, refusal
from pactune.engines.snapshots import ChangeDetector
from pactune.engines.traced import Program, as_flat, trace
from pactune.hypergradient.records import GradientPair, StepData
from pactune.interrupts import check_interrupt
from pactune.rounds.chain import Carry
from pactune.rounds.engine import Engine, RoundChain, log
from pactune.trees import Params, norm, sub

__all__ = ["Captured"]

MOST_GRAPHS = 2  # for each kind of round: many steps, and the rest; each holds its memory on the device
MOST_CHECKS = 4  # graphs of a single step, one for each kind of round
WARM_UPS = 2  # runs before the capture, in which libraries choose their kernels and allocate


@dataclass
class Captured(Engine):
    """Capture `steps` inner steps of all chains in a CUDA graph and replay it.

    The training and the validation gradient of a step run on two streams, and chains or runs that are not stacked on
    streams of their own. Mini-batches and noise are copied into fixed places before each replay. Falls back to the
    eager engine, and logs why, where the steps cannot be captured.

    The first measured step of every round is run as it is written and compared with a graph of that one step. Where
    the two differ, a loss or a model depends on something that has changed, and the run goes on step by step.

    Args:
        steps: inner steps per replay.
        two_streams: run the two gradients of a step side by side.
        fuse: what `torch.compile` fuses before it is captured: nothing, the elementwise "updates" that follow the two
            gradients of a step, or whole "steps", which pays for small models.
        autotune: let cuDNN try its kernels and take the fastest; which one that is may differ from run to run.
        tf32: multiply in TF32, about three digits; None leaves PyTorch's own flags alone.
        autocast: run the models in "bfloat16" or "float16" where autocast thinks it safe.
        channels_last: lay images and their kernels out with channels last.
    """

    steps: int = 20
    two_streams: bool = True
    fuse: Literal["updates", "steps"] | None = None
    autotune: bool = False
    tf32: bool | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    channels_last: bool = False

    _checks: list[_Graph] = field(default_factory=list, init=False, repr=False)
    _failed: list[Segment] = field(default_factory=list, init=False, repr=False)
    _changes: ChangeDetector = field(default_factory=ChangeDetector, init=False, repr=False, compare=False)

    def run_ahead(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Replay as many whole graphs as fit, and a shorter one for the rest."""
        stride = round_chains[0].chain.plan.path_stride
        size = -(-self.steps // stride) * stride
        if reason := self._reason(round_chains):
            log.info("steps are run one by one: %s", reason)
            return 0
        start = 0
        while start < steps and not round_chains[0].chain.measures(start):
            _step_all(round_chains, start)
            start += 1
        checked = self._checked_step(round_chains, start) if start < steps else None
        if checked is None:
            return min(start + 1, steps)
        start += 1
        whole = start + (steps - start) // size * size
        done = self._replay(round_chains, (start, whole), size, checked.longer)
        return self._replay(round_chains, (whole, steps), steps - whole, checked.longer) if done == whole else done

    def _checked_step(self, round_chains: Sequence[RoundChain], t: int) -> _Graph | None:
        """Run a measured step as it is written; return the graph of that step if it gives the same.

        The graph is captured without the engine's options, so that it runs the kernels of the step itself. It keeps
        the longer graphs that were captured in rounds in which it was checked.
        """
        lines = [_Line(round_chain, t, t + 1, 1, Captured()).copied() for round_chain in round_chains]
        problems = {line.problem.members[0]: line.problem for line in lines}
        wrong = [problems[first] for first in self._changes.run(lambda: _step_all(round_chains, t), problems)]
        graph = None if wrong else self._graph(lines, self._checks, Captured())
        if graph is not None:
            graph.load(lines)
            graph.replay(lines, t)
            wrong = [line.problem for line, found in zip(lines, graph.carries, strict=True) if not line.agrees(found)]
        for problem in wrong:
            self.mark_stateful(problem)
        return None if wrong else graph

    def _replay(
        self, round_chains: Sequence[RoundChain], steps: tuple[int, int], size: int, known: list[_Graph]
    ) -> int:
        """Run steps by a graph of `size` of them; return how many steps of the round are done."""
        start, stop = steps
        if start == stop:
            return start
        lines = [_Line(round_chain, start, stop, size, self) for round_chain in round_chains]
        graph = self._graph(lines, known, self)
        if graph is None:
            return start
        graph.load(lines)
        done = start
        while done < stop and graph.replay(lines, done):
            check_interrupt()
            done += size
        graph.unload(lines, done - start)
        return done

    def _reason(self, round_chains: Sequence[RoundChain]) -> str | None:
        if round_chains[0].chain.plan.trajectory.problem.device.type != "cuda":
            return "the model is not on a CUDA device"
        return next((reason for round_chain in round_chains if (reason := refusal(round_chain))), None)

    def _graph(self, lines: list[_Line], known: list[_Graph], options: Captured) -> _Graph | None:
        """Return the graph of these chains, captured at the first call."""
        for found in known:
            if found.matches(lines):
                return found
        if any(line.segment.same(failed) for line in lines for failed in self._failed):
            return None
        try:
            with options.precision():
                graph = _Graph(lines, options)
        except Exception as error:  # a model may do anything that cannot be captured
            torch.cuda.synchronize()
            log.info("steps are run one by one: capturing them failed with %s: %s", type(error).__name__, error)
            self._failed.append(lines[0].segment)
            return None
        del known[: max(0, len(known) + 1 - (MOST_CHECKS if known is self._checks else MOST_GRAPHS))]
        known.append(graph)
        return graph

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Set the flags under which kernels are chosen, and put them back."""
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
        cudnn.benchmark = self.autotune or before[0]
        if self.tf32 is not None:
            cudnn.allow_tf32 = matmul.allow_tf32 = self.tf32
        try:
            with ExitStack() as stack:
                if self.autocast is not None:
                    kind = getattr(torch, self.autocast)
                    stack.enter_context(torch.autocast("cuda", dtype=kind, cache_enabled=False))
                yield
        finally:
            cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


class _Line:
    """One chain, and what it meets in the steps that are replayed."""

    def __init__(self, round_chain: RoundChain, start: int, stop: int, size: int, engine: Captured) -> None:
        chain = round_chain.chain
        self.round_chain, self.size = round_chain, size
        self.problem = chain.plan.trajectory.problem
        self.segment = Segment.of(round_chain, start, size)
        self.carry, self.carry_shape = flatten(chain.carry.at_start())
        self.hyper, self.hyper_shape = flatten(chain.hyper)
        self.feed = SegmentReader(round_chain, start, stop)
        self.outside, self.outside_shape = self.feed.flat(start, size)
        self.layout = torch.channels_last if engine.channels_last else torch.preserve_format

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        return self.carry_shape, self.hyper_shape, self.outside_shape

    def copied(self) -> _Line:
        """Keep a copy of where the chain is, since its next step may write into the state; return itself."""
        self.carry = [tensor.clone() for tensor in self.carry]
        return self

    def agrees(self, found: Flat) -> bool:
        """Whether a step that was replayed from the carry led where the chain is now, up to rounding."""
        restore = self.carry_shape.restore
        return _agree(restore(found), self.round_chain.chain.carry, restore(self.carry))

    def placed(self, tensors: Flat) -> Flat:
        """Return copies at fixed places, in the layout of the engine."""
        device = self.segment.trajectory.problem.device
        return [_copy(tensor.to(device), self.layout) for tensor in tensors]

    def jump(self, flat: Flat, steps: int) -> None:
        """Bring the chain where the replays have led."""
        chain = self.round_chain.chain
        carry: Carry = self.carry_shape.restore([value.clone(memory_format=torch.contiguous_format) for value in flat])
        state = carry.state._replace(step=chain.carry.state.step + steps)
        chain.jump(carry._replace(state=state), steps)


class _Graph:
    """A captured graph and the fixed places it reads and writes."""

    def __init__(self, lines: list[_Line], engine: Captured) -> None:
        self.longer: list[_Graph] = []
        self._segments, self._shapes = [line.segment for line in lines], [line.shapes for line in lines]
        self.carries = [line.placed(line.carry) for line in lines]
        self._hypers = [line.placed(line.hyper) for line in lines]
        self._outsides = [line.placed(line.outside) for line in lines]
        self._sources: list[list[Tensor | None]] = [[None] * len(flat) for flat in self._outsides]
        programs = [_program(line, engine) for line in lines]
        streams = [_stream() for _ in lines]

        def body() -> None:
            main = torch.cuda.current_stream()
            parts = zip(programs, streams, self.carries, self._hypers, self._outsides, strict=True)
            for stream in streams:
                stream.wait_stream(main)
            for program, stream, carry, hyper, outside in parts:
                with torch.cuda.stream(stream):
                    after = program(*carry, *hyper, *outside)
                    torch._foreach_copy_(carry, list(after))
            for stream in streams:
                main.wait_stream(stream)

        side = _stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(WARM_UPS):
                body()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(self._graph), torch.no_grad():
            body()

    def matches(self, lines: list[_Line]) -> bool:
        """Whether the graph was captured for these chains."""
        if len(lines) != len(self._segments):
            return False
        pairs = zip(lines, self._segments, self._shapes, strict=True)
        return all(line.segment.same(segment) and line.shapes == shapes for line, segment, shapes in pairs)

    def load(self, lines: list[_Line]) -> None:
        """Put the chains' tensors and λ into their places."""
        for line, carry, hyper in zip(lines, self.carries, self._hypers, strict=True):
            for place, value in zip([*carry, *hyper], [*line.carry, *line.hyper], strict=True):
                place.copy_(value)

    def replay(self, lines: list[_Line], start: int) -> bool:
        """Bring in what the next steps meet, where it is not there yet, and run them; return whether it fits."""
        fed = [line.feed.flat(start, line.size) for line in lines]
        if any(shape != line.outside_shape for line, (_, shape) in zip(lines, fed, strict=True)):
            log.info("steps are run one by one: mini-batches differ in size; take one that divides the rows")
            return False
        for (values, _), places, sources in zip(fed, self._outsides, self._sources, strict=True):
            for i, (place, value) in enumerate(zip(places, values, strict=True)):
                if sources[i] is not value:
                    place.copy_(value)
                    sources[i] = value
        self._graph.replay()
        return True

    def unload(self, lines: list[_Line], steps: int) -> None:
        """Take the chains out of their places."""
        for line, carry in zip(lines, self.carries, strict=True):
            line.jump(carry, steps)


def _step_all(round_chains: Sequence[RoundChain], t: int) -> None:
    """Run a step of every chain as it is written."""
    for round_chain in round_chains:
        round_chain.chain.step(round_chain.step_data(t), round_chain.chain.hyper)


def _agree(found: Carry, wanted: Carry, before: Carry) -> bool:
    """Whether one step led two ways to the same, judged by how far it moved each part.

    Kernels on a GPU may sum in another order at every call. Adam turns the rounding of a gradient near 0 into a whole
    step, so the parameters are given more room.
    """
    exact = found.total.dtype == torch.float64
    parts = zip(*(_named_parts(carry).items() for carry in (found, wanted, before)), strict=True)
    gaps = []
    for (name, a), (_, b), (_, start) in parts:
        room = (1e-6 if exact else 1e-2) if name == "params" else (1e-8 if exact else 1e-4)
        eps = torch.finfo(found.total.dtype).eps
        gaps.append(norm(sub(a, b)) <= room * norm(sub(b, start)) + 100 * eps * norm(b))
    return bool(torch.stack(gaps).all())


def _named_parts(carry: Carry) -> dict[str, Params]:
    """Return the tensors of a carry by part; integer buffers count batches and are left out."""
    buffers = {name: value for name, value in carry.state.buffers.items() if value.is_floating_point()}
    parts = {"params": carry.state.params, **carry.state.slots, "buffers": buffers, "sums": carry.sums}
    return {"total": {"": carry.total}, **{name: part for name, part in parts.items() if part}}


def _program(line: _Line, engine: Captured) -> Program:
    """Return the steps of one line as a function of flat tensors, one step after the other."""
    if engine.fuse == "steps":
        return _fused_steps(line)
    segment = line.segment
    trajectory = replace(segment.trajectory, side=_stream() if engine.two_streams else None)
    finish = _FusedUpdate(segment) if engine.fuse == "updates" else None
    return as_flat(Segment(trajectory, segment.measured, derived=segment.derived, finish=finish), line.shapes)


class _FusedUpdate:
    """What follows the two gradients of a step, compiled."""

    def __init__(self, segment: Segment) -> None:
        self._finish = segment.finish
        self._known: dict[Shape, tuple[Program, Shape]] = {}

    def __call__(self, carry: Carry, hyper: Params, data: StepData, pair: GradientPair) -> Carry:
        bare = carry._replace(state=carry.state._replace(buffers={}))
        value = (bare, hyper, data.noise, data.numbers, pair._replace(buffers={}))
        flat, shape = flatten(value)
        if shape not in self._known:
            self._known[shape] = self._compiled(flat, shape, data)
        program, out = self._known[shape]
        found: Carry = out.restore(list(program(*flat)))
        return found._replace(state=found.state._replace(buffers=pair.buffers))

    def _compiled(self, example: Flat, shape: Shape, data: StepData) -> tuple[Program, Shape]:
        outs: list[Shape] = []

        def function(*tensors: Tensor) -> list[Tensor]:
            carry, hyper, noise, numbers, pair = shape.restore(tensors)
            flat, out = flatten(self._finish(carry, hyper, data._replace(noise=noise, numbers=numbers), pair))
            outs.append(out)
            return flat

        graph = trace(function, example)
        return torch.compile(graph, fullgraph=True, dynamic=False), outs[0]


def _fused_steps(line: _Line) -> Program:
    """Return steps that are compiled one by one; all of one kind share a program."""
    segment, (carry_shape, hyper_shape, outside_shape) = line.segment, line.shapes
    known: dict[tuple[Any, ...], Program] = {}
    stacked = bool(segment.trajectory.problem.runs)
    count = len(carry_shape.tensors)

    def program(*tensors: Tensor) -> Sequence[Tensor]:
        flat, hyper = list(tensors[:count]), list(tensors[count : count + len(hyper_shape.tensors)])
        outside: SegmentData = outside_shape.restore(tensors[count + len(hyper) :])
        joint = JointGradients.of(segment.trajectory, outside.train, outside.valid)
        for t, measured in enumerate(segment.measured):
            met = outside.single(t)
            if joint is not None and measured:
                met = met._replace(train=[joint.batch], valid=[joint.batch._replace(data=())])
            inputs, shape = flatten(met)
            key = (measured, shape)
            if key not in known:
                pair = joint if measured else None
                step = Segment(segment.trajectory, (measured,), derived=segment.derived, pair=pair)
                example = [*flat, *hyper, *inputs]
                graph = trace(as_flat(step, (carry_shape, hyper_shape, shape)), example, turn=stacked)
                known[key] = torch.compile(graph, fullgraph=True, dynamic=False)
            flat = list(known[key](*flat, *hyper, *inputs))
        return flat

    return program


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector away: an older graph that it frees during a capture would spoil the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _copy(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    if layout is torch.channels_last and tensor.ndim == 4:
        return tensor.detach().clone(memory_format=torch.channels_last)
    return tensor.detach().clone(memory_format=torch.contiguous_format)
