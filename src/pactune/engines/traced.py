"""The traced engine: a few steps recorded as a list of tensor operations, without autograd and Python between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pactune.engines.segment import Flat, Segment, SegmentData, SegmentReader, Shape, flatten, refusal
from pactune.engines.snapshots import ChangeDetector
from pactune.interrupts import check_interrupt
from pactune.rounds.chain import Carry
from pactune.rounds.engine import Engine, RoundChain, log
from pactune.trees import Params

__all__ = ["Compiled", "Program", "Traced", "as_flat", "trace"]

Program = Callable[..., Sequence[Tensor]]
MOST_RECORDINGS = 16  # checked steps of different shapes and settings, and longer recordings of each of them


@dataclass
class Recording:
    """A segment that was recorded for tensors of certain shapes.

    Attributes:
        segment: the steps.
        shapes: of what they start from and meet.
        program: the recorded steps, None where recording failed.
        longer: recordings that were made in rounds in which this one was checked, and that only such rounds use.
    """

    segment: Segment
    shapes: tuple[Shape, ...]
    program: Program | None
    longer: list[Recording] = field(default_factory=list)


@dataclass
class Traced(Engine):
    """Record the tensor operations of a few steps once, and run that list again and again.

    The same kernels run in the same order as in the eager engine, so the numbers are the same bit for bit; what is
    saved is the building of autograd graphs and the walk through modules, which outweigh the arithmetic of a small
    model. Falls back to the eager engine, and logs why, where the steps cannot be recorded.

    The first measured step of every round is run as it is written and compared with its recording. Where the two
    differ, a loss or a model depends on something that has changed, and the run goes on step by step.

    Args:
        steps: inner steps per recording.
        after: inner steps of a run that pass before anything is recorded, so that a short run pays nothing.
    """

    steps: int = 4
    after: int = 0

    exact = True

    _recordings: list[Recording] = field(default_factory=list, init=False, repr=False, compare=False)
    _changes: ChangeDetector = field(default_factory=ChangeDetector, init=False, repr=False, compare=False)

    def run_ahead(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Run the first steps of each chain from recordings.

        Whether they are recorded depends on the position in the run alone, so that a resumed run does what the
        uninterrupted one does.
        """
        if round_chains[0].position + steps <= self.after:
            return 0
        if reason := _first_reason(round_chains):
            log.info("steps are run one by one: %s", reason)
            return 0
        done = [self._run(round_chain, steps) for round_chain in round_chains]
        for round_chain, count in zip(round_chains, done, strict=True):
            for t in range(count, max(done)):  # where one chain could not be recorded and another could
                round_chain.chain.step(round_chain.step_data(t), round_chain.chain.hyper)
        return max(done)

    def _run(self, round_chain: RoundChain, steps: int) -> int:
        chain, start = round_chain.chain, 0
        while start < steps and not chain.measures(start):
            chain.step(round_chain.step_data(start), chain.hyper)
            start += 1
        if start == steps:
            return start
        checked = self._checked_step(round_chain, start)
        return start + 1 if checked is None else self._run_recorded(round_chain, start + 1, steps, checked.longer)

    def _checked_step(self, round_chain: RoundChain, t: int) -> Recording | None:
        """Run a measured step as it is written; return its recording if that gives the same, bit for bit.

        A loss or a model may read anything that Python can reach. A recording keeps what it read. So a round uses
        a recording only if the first measured step of the round agrees with the recording of that step, and that
        one agreed too when the other was made.
        """
        chain, problem = round_chain.chain, round_chain.chain.plan.trajectory.problem
        carry, shape = flatten(chain.carry.at_start())
        lambdas, hyper_shape = flatten(chain.hyper)
        outside, outside_shape = SegmentReader(round_chain, t, t + 1).flat(t, 1)
        example = [*(tensor.clone() for tensor in carry), *lambdas, *outside]  # the step may write into the state
        if self._changes.run(lambda: chain.step(round_chain.step_data(t), chain.hyper), problem.members[:1]):
            self.mark_stateful(problem)
            return None
        shapes = shape, hyper_shape, outside_shape
        checked = self._recording(self._recordings, Segment.of(round_chain, t, 1), shapes, example)
        if checked.program is None:
            return None
        with torch.no_grad():
            found = checked.program(*example)
        if all(_equal(a, b) for a, b in zip(found, flatten(chain.carry.at_start())[0], strict=True)):
            return checked
        self.mark_stateful(problem)
        return None

    def _run_recorded(self, round_chain: RoundChain, start: int, steps: int, known: list[Recording]) -> int:
        chain, feed = round_chain.chain, SegmentReader(round_chain, start, steps)
        stride = chain.plan.path_stride
        size = -(-self.steps // stride) * stride
        step = chain.carry.state.step
        flat, shape = flatten(chain.carry.at_start())
        lambdas, hyper_shape = flatten(chain.hyper)
        done, last, program = start, None, None
        while done < steps:
            check_interrupt()
            count = size if done + size <= steps else 1
            outside, outside_shape = feed.flat(done, count)
            if outside_shape is not last or stride > 1:
                segment, shapes = Segment.of(round_chain, done, count), (shape, hyper_shape, outside_shape)
                program = self._recording(known, segment, shapes, [*flat, *lambdas, *outside]).program
                last = outside_shape
            if program is None:
                break
            with torch.no_grad():
                flat = list(program(*flat, *lambdas, *outside))
            done += count
        final: Carry = shape.restore(flat)
        state = final.state._replace(step=step + done - start)
        chain.jump(final._replace(state=state), done - start)
        return done

    def _recording(
        self, known: list[Recording], segment: Segment, shapes: tuple[Shape, ...], example: Flat
    ) -> Recording:
        """Return the recording of a segment, made at the first call."""
        for found in known:
            if found.shapes == shapes and found.segment.same(segment):
                return found
        made = Recording(segment, shapes, self._record(segment, shapes, example))
        del known[: max(0, len(known) + 1 - MOST_RECORDINGS)]
        known.append(made)
        return made

    def _record(self, segment: Segment, shapes: tuple[Shape, ...], example: Flat) -> Program | None:
        function, several = as_flat(segment, shapes), len(segment.measured) > 1
        turned = several and bool(segment.trajectory.problem.runs)  # a single step is recorded as it is written
        try:
            graph = trace(function, example, turn=turned)
            program = self._build(graph, example, len(segment.measured))
            with torch.no_grad():
                found = program(*example)
        except Exception as error:
            log.info("steps are run one by one: recording them failed with %s: %s", type(error).__name__, error)
            return None
        wanted = function(*example)
        agree = _close if turned or (several and not self.exact) else _equal
        if not all(agree(a, b) for a, b in zip(found, wanted, strict=True)):
            log.warning("steps are run one by one: recorded steps do not give what the steps themselves give")
            return None
        return program

    def _build(self, graph: fx.GraphModule, example: Flat, steps: int) -> Program:
        program: Program = graph.forward
        return program


@dataclass
class Compiled(Traced):
    """The recorded steps, compiled into fused kernels by the compiler behind `torch.compile`.

    Pays for small models that make very many steps: compiling takes the better part of a minute and needs a C++
    compiler. The kernels differ from the eager ones, so the numbers agree to rounding and not bit for bit.

    Args:
        steps: inner steps per compiled call.
        after: inner steps that are run eagerly before anything is compiled.
    """

    steps: int = 8

    exact = False

    def _build(self, graph: fx.GraphModule, example: Flat, steps: int) -> Program:
        if steps < self.steps:
            return super()._build(graph, example, steps)  # the few steps that are left over are not worth compiling
        from torch._inductor import compile as compile_graph  # takes seconds to import

        with torch.no_grad():
            program: Program = compile_graph(graph, list(example))  # without the guards of `torch.compile`
        return program


def as_flat(segment: Segment, shapes: tuple[Shape, ...]) -> Callable[..., list[Tensor]]:
    """Return a segment as a function of one flat list of tensors: carry, λ, and what the steps meet."""
    ends = [sum(len(shape.tensors) for shape in shapes[: i + 1]) for i in range(3)]

    def function(*tensors: Tensor) -> list[Tensor]:
        carry: Carry = shapes[0].restore(tensors[: ends[0]])
        hyper: Params = shapes[1].restore(tensors[ends[0] : ends[1]])
        outside: SegmentData = shapes[2].restore(tensors[ends[1] :])
        return flatten(segment(carry, hyper, outside))[0]

    return function


def _equal(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(found, wanted) or bool(found.isnan().any() and wanted.isnan().any())


def _close(found: Tensor, wanted: Tensor) -> bool:
    loose = 1e-8 if wanted.dtype == torch.float64 else 1e-3
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    return torch.allclose(found, wanted, rtol=loose, atol=loose * scale, equal_nan=True)


def _turn_products(graph: fx.GraphModule) -> None:
    """Compute products of many runs from the other side where that is faster.

    Where the result is tall, AᵀB becomes (BᵀA)ᵀ: the weight gradient of a stacked layer comes as the former, the latter
    is several times faster on a CPU, and what follows then reads memory in order. On a CPU ABᵀ, the layer itself,
    becomes (BAᵀ)ᵀ too.
    """
    bmm, transpose = torch.ops.aten.bmm.default, torch.ops.aten.transpose.int

    def turned(node: fx.Node) -> fx.Node:
        if _is_turned(node):
            return node.args[0]  # type: ignore[return-value]
        return graph.graph.call_function(transpose, (node, 1, 2))

    for node in list(graph.graph.nodes):
        if node.target is not bmm:
            continue
        left, right = (_bare(arg) for arg in node.args)
        result = node.meta["val"]
        tall = result.shape[-1] < result.shape[-2]
        if tall and (_is_turned(left) or (_is_turned(right) and result.device.type == "cpu")):
            with graph.graph.inserting_before(node):
                product = graph.graph.call_function(bmm, (turned(right), turned(left)))
                node.replace_all_uses_with(graph.graph.call_function(transpose, (product, 1, 2)))
            graph.graph.erase_node(node)


def _bare(node: fx.Node) -> fx.Node:
    """Return a node without views that change nothing."""
    aten = torch.ops.aten
    while node.target in (aten.expand.default, aten.view.default, aten._unsafe_view.default):
        before: fx.Node = node.args[0]  # type: ignore[assignment]
        if before.meta["val"].shape != node.meta["val"].shape:
            break
        node = before
    return node


def _is_turned(node: fx.Node) -> bool:
    """Whether a node is the transpose of many matrices."""
    axes = node.args[1:]
    return node.target is torch.ops.aten.transpose.int and sorted(a % 3 for a in axes) == [1, 2]  # type: ignore[operator]


def _first_reason(round_chains: Sequence[RoundChain]) -> str | None:
    return next((reason for round_chain in round_chains if (reason := refusal(round_chain))), None)


def trace(function: Callable[..., list[Tensor]], example: Flat, *, turn: bool = False) -> fx.GraphModule:
    """Record the tensor operations of a function, without what only autograd needed.

    Args:
        function: from tensors to tensors.
        example: tensors to record it with.
        turn: compute tall products from the other side, see `_turn_products`.
    """
    graph = make_fx(function)(*example)
    if turn:
        _turn_products(graph)
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
