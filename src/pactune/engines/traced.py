"""The traced engine: run the inner steps from a recording of their tensor operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from pactune.engines.compiling import compile_graph
from pactune.engines.layout import TensorList, TreeLayout, flatten
from pactune.engines.rewrites import call_directly, hold_constants, hold_numbers
from pactune.engines.round_end import RoundEnd, estimator_obstacle, read_round, round_end_obstacle
from pactune.engines.segment import Segment, SegmentReader, flat_function, recording_obstacle
from pactune.engines.snapshots import ChangeDetector
from pactune.engines.timing import least_seconds
from pactune.engines.tracing import Program, trace
from pactune.interrupts import check_interrupt
from pactune.rounds.chain import Carry, ChainEnd
from pactune.rounds.engine import Engine, RoundChain, log

__all__ = ["Compiled", "Traced"]

Recorded = Segment | RoundEnd

FEWEST_STEPS = 3  # with fewer first steps the check of a round, an eager step and a recorded one, costs what is saved
MOST_RECORDINGS = 16  # of a run in one list; the oldest one goes first


@dataclass
class Recording:
    """A recorded segment, for tensors of certain shapes.

    Attributes:
        segment: the steps.
        layouts: the layouts of carry, λ and data.
        program: the recorded steps; None if recording failed.
        longer: longer recordings. A round uses them only if this recording agreed with an eager step of the round.
    """

    segment: Recorded
    layouts: tuple[TreeLayout, ...]
    program: Program | None
    longer: list[Recording] = field(default_factory=list)


@dataclass
class Traced(Engine):
    """Record the tensor operations of a few steps once, and run the recording again and again.

    The recording of a single run has the same kernels in the same order as the eager engine, so the numbers are equal
    bit for bit. Where runs or chains are stacked, the recording transposes some products, and the numbers agree to
    rounding. A recording saves the time to build autograd graphs and to call modules, which dominates in a small model.
    If the steps cannot be recorded, the engine logs the reason and the steps run eagerly.

    The engine runs the first measured step of every round eagerly and compares it with its recording. If the two
    differ, a loss or a model depends on something that has changed, and the rest of the run is eager.

    Args:
        steps: the number of inner steps per recording.
        after: the number of inner steps of a run before anything is recorded, so that a short run pays nothing.
        only_if_faster: measure a recording of a whole round once, and run such rounds eagerly if that is faster. A
            short round of a model with large kernels gains less than the comparison with the present functions takes.
    """

    steps: int = 4
    after: int = 0
    only_if_faster: bool = False

    exact = True

    _recordings: list[Recording] = field(default_factory=list, init=False, repr=False, compare=False)
    _changes: ChangeDetector = field(default_factory=ChangeDetector, init=False, repr=False, compare=False)
    _slower: list[RoundEnd] = field(default_factory=list, init=False, repr=False, compare=False)

    def run_first_steps(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Run the first steps of each chain from recordings.

        The decision to record depends only on the position in the run. So a resumed run equals the uninterrupted one.
        """
        if steps < FEWEST_STEPS or round_chains[0].position + steps <= self.after:
            return 0
        if reason := next((found for one in round_chains if (found := recording_obstacle(one))), None):
            log.info("steps are run one by one: %s", reason)
            return 0
        done = [self._run(round_chain, steps) for round_chain in round_chains]
        for round_chain, count in zip(round_chains, done, strict=True):
            for t in range(count, max(done)):  # another chain may have run more steps
                round_chain.step(t)
        return max(done)

    def run_ends(self, round_chains: Sequence[RoundChain], first: int) -> list[ChainEnd | None]:
        """Run rounds from recordings of the whole round, if recordings of their first steps are not enough."""
        return [
            self._run_whole(one) if first == 0 and one.chain.plan.ends_long else None  # chain after chain
            for one in round_chains
        ]

    def _run_whole(self, round_chain: RoundChain) -> ChainEnd | None:
        """Run a round from a recording of the whole round; return None if the chain has to run it.

        The recording also returns the risks at θ_0. They are compared with those of the present functions, bit for bit,
        or up to the rounding of compiled kernels. So are the operations in the graphs of the risks.
        """
        chain, problem = round_chain.chain, round_chain.chain.plan.trajectory.problem
        if round_chain.position + chain.plan.inner_steps <= self.after or estimator_obstacle(chain):
            return None
        whole = RoundEnd.of(chain)
        if any(whole.is_same_function(slow) for slow in self._slower):
            return None
        known_rounds = [one for one in self._recordings if one.segment.is_same_function(whole)]
        if not known_rounds and (reason := round_end_obstacle(round_chain)):
            log.debug("the round is not recorded as a whole: %s", reason)
            return None
        start, data = read_round(round_chain)
        if not data.steps.even:
            return None
        known: list[TensorList] = []
        ask = lambda: known.append(whole.ask(start, chain.hyper, data))  # noqa: E731
        if self._changes.run(ask, problem.members[:1]):
            self.mark_unrecordable(problem)
            return None
        flat = [flatten(part) for part in (start, chain.hyper, data)]
        example, layouts = [tensor for tensors, _ in flat for tensor in tensors], tuple(layout for _, layout in flat)
        recording = next((one for one in known_rounds if one.layouts == layouts), None)
        if recording is None and known_rounds and round_end_obstacle(round_chain):
            return None
        recording = recording or self._recording(self._recordings, whole, layouts, example)
        program = recording.program
        if program is None:
            return None
        if self.only_if_faster and recording.segment is whole:  # it was recorded just now
            eager, recorded = least_seconds(
                lambda: whole.run(start, chain.hyper, data),
                lambda: (self._changes.run(ask, problem.members[:1]), program(*example)),
            )
            if eager < recorded:
                self._recordings.remove(recording)
                self._slower.append(whole)
                return None
        found = list(program(*example))
        assert isinstance(recording.segment, RoundEnd)
        assert recording.segment.result is not None
        end: ChainEnd
        end, probed = recording.segment.result.restore(found)
        agree = _equal if self.exact else _nearly_equal
        same_graph = recording.segment.probed_graph == whole.probed_graph
        if not same_graph or not all(agree(a, b) for a, b in zip(probed, known[0], strict=True)):
            self.mark_unrecordable(problem)
            return None
        return end._replace(state=end.state._replace(step=chain.carry.state.step + chain.plan.inner_steps))

    def _run(self, round_chain: RoundChain, steps: int) -> int:
        """Run up to `steps` steps of one chain; return how many were run."""
        start = 0
        while start < steps and not round_chain.chain.measures(start):
            round_chain.step(start)
            start += 1
        if start == steps:
            return start
        if start + 1 == steps:  # no step is left that a recording could run
            round_chain.step(start)
            return steps
        checked = self._checked_step(round_chain, start)
        return start + 1 if checked is None else self._run_recorded(round_chain, start + 1, steps, checked.longer)

    def _checked_step(self, round_chain: RoundChain, t: int) -> Recording | None:
        """Run a measured step eagerly; return its recording if the recording gives the same result, bit for bit.

        A loss or a model may read anything that Python can reach, and a recording keeps the values that it read. So a
        round uses a longer recording only if the recording of its first measured step agrees with the eager step, both
        in this round and in the round in which the longer recording was made.
        """
        problem = round_chain.chain.plan.trajectory.problem
        carry, carry_layout = flatten(round_chain.carry.at_start())
        hyper, hyper_layout = flatten(round_chain.hyper)
        data, data_layout = SegmentReader(round_chain, t, t + 1).read_flat(t, 1)
        example = [*(tensor.clone() for tensor in carry), *hyper, *data]  # the eager step may overwrite the state
        if self._changes.run(lambda: round_chain.step(t), problem.members[:1]):
            self.mark_unrecordable(problem)
            return None
        layouts = carry_layout, hyper_layout, data_layout
        checked = self._recording(self._recordings, Segment.of(round_chain, t, 1), layouts, example)
        if checked.program is None:
            return None
        found = checked.program(*example)
        if all(_equal(a, b) for a, b in zip(found, flatten(round_chain.carry.at_start())[0], strict=True)):
            return checked
        self.mark_unrecordable(problem)
        return None

    def _run_recorded(self, round_chain: RoundChain, start: int, steps: int, known: list[Recording]) -> int:
        """Run the steps from `start` to `steps` from recordings; return the number of finished steps of the round."""
        chain, reader = round_chain.chain, SegmentReader(round_chain, start, steps)
        stride = chain.plan.path_stride
        size = -(-self.steps // stride) * stride  # a multiple of the stride: all segments measure at the same steps
        first_step = chain.carry.state.step
        carry, carry_layout = flatten(round_chain.carry.at_start())
        hyper, hyper_layout = flatten(round_chain.hyper)
        done, last_layout, program = start, None, None
        while done < steps:
            check_interrupt()
            data, data_layout, count = reader.read_even(done, size if done + size <= steps else 1)
            if data_layout is not last_layout or stride > 1:
                segment, layouts = Segment.of(round_chain, done, count), (carry_layout, hyper_layout, data_layout)
                program = self._recording(known, segment, layouts, [*carry, *hyper, *data]).program
                last_layout = data_layout
            if program is None:
                break
            carry = list(program(*carry, *hyper, *data))
            done += count
        final: Carry = carry_layout.restore(carry)
        state = final.state._replace(step=first_step + done - start)
        round_chain.continue_from(final._replace(state=state), done - start)
        return done

    def _recording(
        self, known: list[Recording], segment: Recorded, layouts: tuple[TreeLayout, ...], example: TensorList
    ) -> Recording:
        """Return the recording of a segment from `known`; make it and add it if it is not there."""
        for found in known:
            if found.layouts == layouts and found.segment.is_same_function(segment):
                return found
        made = Recording(segment, layouts, self._record(segment, layouts, example))
        own = [one for one in known if one.segment.trajectory.problem is segment.trajectory.problem]
        if len(own) >= MOST_RECORDINGS:
            known.remove(own[0])
        known.append(made)
        return made

    def _record(self, segment: Recorded, layouts: tuple[TreeLayout, ...], example: TensorList) -> Program | None:
        """Record a segment; return None if that fails or if the recording gives another result."""
        function, several = flat_function(segment, layouts), len(segment.measured) > 1
        # The recordings of a single step and of a round are compared bit for bit, so their products stay as they are.
        transpose = several and bool(segment.trajectory.problem.runs) and isinstance(segment, Segment)
        try:
            graph = trace(function, example, transpose=transpose, merge=True)
            program = _below_autograd(self._build(graph, example, len(segment.measured)))
            found = program(*example)
        except Exception as error:
            log.info("steps are run one by one: recording them failed with %s: %s", type(error).__name__, error)
            return None
        wanted = function(*example)
        agree = _close if transpose or (several and not self.exact) else _equal
        if not all(agree(a, b) for a, b in zip(found, wanted, strict=True)):
            log.warning("steps are run one by one: recorded steps do not give what the steps themselves give")
            return None
        return program

    def _build(self, graph: fx.GraphModule, example: TensorList, steps: int) -> Program:
        hold_numbers(graph)
        hold_constants(graph)
        call_directly(graph)
        program: Program = graph.forward
        return program


@dataclass
class Compiled(Traced):
    """The recorded steps, compiled into fused kernels by the compiler behind `torch.compile`.

    It pays for small models that make very many steps. Compiling takes the better part of a minute and needs a C++
    compiler. The kernels differ from the eager ones, so the numbers agree up to rounding and not bit for bit.

    Args:
        steps: the number of inner steps per compiled call.
        after: the number of inner steps that run eagerly before anything is compiled.
    """

    steps: int = 8

    exact = False

    def _build(self, graph: fx.GraphModule, example: TensorList, steps: int) -> Program:
        if steps < self.steps:
            return super()._build(graph, example, steps)  # compiling does not pay for the few last steps
        return compile_graph(graph, example)


def _below_autograd(program: Program) -> Program:
    """Run a program without the layer of autograd, through which every operation passes under `torch.no_grad` too."""

    def run(*tensors: Tensor) -> Sequence[Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            return program(*tensors)

    return run


def _equal(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(found, wanted) or bool(((found == wanted) | (found.isnan() & wanted.isnan())).all())


def _nearly_equal(found: Tensor, wanted: Tensor) -> bool:
    """Compare two values of one forward, whose kernels round differently."""
    return _close(found, wanted, 1e-11 if wanted.dtype == torch.float64 else 1e-5)


def _close(found: Tensor, wanted: Tensor, loose: float | None = None) -> bool:
    loose = loose or (1e-8 if wanted.dtype == torch.float64 else 1e-3)
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    return torch.allclose(found, wanted, rtol=loose, atol=loose * scale, equal_nan=True)
