"""The captured engine: inner steps and the ends of rounds as CUDA graphs, replayed without Python or launch gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from pactune.engines.compiling import CompiledPrograms
from pactune.engines.cuda_graph import Pool, StepGraph
from pactune.engines.end_graph import EndGraph, EndGraphs
from pactune.engines.graph_options import GraphOptions
from pactune.engines.layout import TensorList
from pactune.engines.replayed_chain import ReplayedChain
from pactune.engines.replayed_end import ReplayedEnd, probes_agree
from pactune.engines.round_end import FEW_STEPS, RoundEnd, estimator_obstacle, round_end_obstacle
from pactune.engines.segment import Segment, recording_obstacle
from pactune.engines.snapshots import ChangeDetector
from pactune.engines.static_tensors import SharedTensors
from pactune.interrupts import check_interrupt
from pactune.rounds.chain import Chain, ChainEnd
from pactune.rounds.engine import Engine, RoundChain, log

__all__ = ["Captured"]

MOST_GRAPHS = 2  # graphs per kind of round: one of many steps and one of the rest; each holds memory on the device
MOST_CHECKS = 4  # graphs of a single step, one per kind of round
PLAIN = GraphOptions()  # the kernels of an eager step


@dataclass
class Captured(Engine):
    """Capture `steps` inner steps of all chains in a CUDA graph and replay it.

    The training and the validation gradient of a step run on two streams. Chains or runs that are not stacked run on
    separate streams. Mini-batches and noise are copied into static tensors before each replay. If the steps cannot be
    captured, the engine logs the reason and the steps run eagerly. If they cannot be compiled, they are captured as
    they are, with a warning.

    The engine runs the first measured step of every round eagerly and compares it with a graph of that one step. If the
    two differ, a loss or a model depends on something that has changed, and the rest of the run is eager.

    The end of every round, the last steps that an estimator follows and the risk at θ_T with its gradients, is a graph
    too, with the kernels of an eager end. It is compared with an eager end once, and in every round by its risks.

    Args:
        steps: the number of inner steps per replay, at most; down to half of it if fewer steps are left over so.
        two_streams: run the two gradients of a step side by side.
        fuse: what `torch.compile` fuses before the capture: None for nothing, "updates" for the elementwise operations
            after the two gradients of a step, or "steps" for whole steps, which pays for small models.
        autotune: let cuDNN try its kernels and take the fastest one. The choice may differ from run to run.
        tf32: multiply in TF32, with about three digits; None keeps PyTorch's flags.
        autocast: run the models in "bfloat16" or "float16" where autocast considers it safe.
        channels_last: store images and their kernels in the channels-last memory format; otherwise they keep theirs.
        only_if_faster: measure the graph of an end once, and run such ends eagerly unless it is clearly faster.
    """

    steps: int = 20
    two_streams: bool = True
    fuse: Literal["updates", "steps"] | None = None
    autotune: bool = False
    tf32: bool | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    channels_last: bool = False
    only_if_faster: bool = False

    _checks: list[StepGraph] = field(default_factory=list, init=False, repr=False)
    _pool: Pool = field(default=None, init=False, repr=False, compare=False)
    _shared: SharedTensors = field(default_factory=SharedTensors, init=False, repr=False, compare=False)
    _compiled: CompiledPrograms = field(default_factory=CompiledPrograms, init=False, repr=False, compare=False)
    _compiles: bool = field(default=True, init=False, repr=False, compare=False)
    _failed: list[Segment] = field(default_factory=list, init=False, repr=False)
    _ends: EndGraphs = field(default_factory=EndGraphs, init=False, repr=False, compare=False)
    _changes: ChangeDetector = field(default_factory=ChangeDetector, init=False, repr=False, compare=False)

    def run_first_steps(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Replay as many whole graphs as fit, and a shorter one for the rest."""
        if reason := self._obstacle(round_chains):
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
        size = _graph_size(steps - start, self.steps, round_chains[0].chain.plan.path_stride)
        whole = start + (steps - start) // size * size
        done = self._replay(round_chains, (start, whole), size, checked.longer)
        return self._replay(round_chains, (whole, steps), steps - whole, checked.longer) if done == whole else done

    def run_ends(self, round_chains: Sequence[RoundChain], first: int) -> list[ChainEnd | None]:
        """Replay the ends of all rounds by one graph.

        The graph also returns the risks at its start. If they, or the operations in their autograd graphs, differ from
        those of the present functions, a loss or a model depends on something that has changed.
        """
        eager: list[ChainEnd | None] = [None] * len(round_chains)
        if reason := self._end_obstacle(round_chains, first):
            log.debug("the ends of rounds run eagerly: %s", reason)
            return eager
        ends = [ReplayedEnd(round_chain, first) for round_chain in round_chains]
        probes: list[TensorList] = []
        problems = {end.problem.members[0]: end.problem for end in ends}
        changed = self._changes.run(lambda: probes.extend(end.probe() for end in ends), problems)
        for problem in changed:
            self.mark_unrecordable(problems[problem])
        graph = None if changed else self._end_graph(ends)
        if graph is None:
            return eager
        found, replayed = graph.replay(ends)
        check_interrupt()
        graphs = zip(graph.functions, ends, strict=True)
        same_graphs = [captured.probed_graph == end.function.probed_graph for captured, end in graphs]
        agree = [a and b for a, b in zip(same_graphs, probes_agree(replayed, probes), strict=True)]
        for end, same in zip(ends, agree, strict=True):
            if not same:
                self.mark_unrecordable(end.problem)
        return [one if same else None for one, same in zip(found, agree, strict=True)]

    def _end_graph(self, ends: list[ReplayedEnd]) -> EndGraph | None:
        """Return the graph of these ends; None if they have to run eagerly."""
        return self._ends.find(ends, self._shared, self._memory(), only_if_faster=self.only_if_faster)

    def _memory(self) -> Pool:
        """Return the memory that all graphs of the engine share, since they never run at the same time."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return self._pool

    def _end_obstacle(self, round_chains: Sequence[RoundChain], first: int) -> str | None:
        """Return why the ends cannot be captured; None if they can."""
        chains = [round_chain.chain for round_chain in round_chains]
        if any(not self.unrecordable.isdisjoint(chain.plan.trajectory.problem.members) for chain in chains):
            return "a loss or a model has changed"
        if reason := next((found for chain in chains if (found := _short_end_obstacle(chain, first))), None):
            return reason
        functions = [RoundEnd.of(chain, first) for chain in chains]
        if self._ends.knows(functions):
            return None
        if self._ends.stay_eager(functions):
            return "capturing them failed or does not pay"
        if first == 0 and (reason := self._obstacle(round_chains)):  # otherwise the first steps have been captured
            return reason
        return next((found for one in round_chains if (found := round_end_obstacle(one, first))), None)

    def _checked_step(self, round_chains: Sequence[RoundChain], t: int) -> StepGraph | None:
        """Run a measured step eagerly; return the graph of that step if it gives the same result.

        The graph is captured without the engine's options, so that it runs the kernels of the eager step. It keeps the
        longer graphs, which are captured only in rounds in which it agreed.
        """
        chains = [ReplayedChain(round_chain, t, t + 1, 1).with_copied_carry() for round_chain in round_chains]
        problems = {chain.problem.members[0]: chain.problem for chain in chains}
        changed = [problems[first] for first in self._changes.run(lambda: _step_all(round_chains, t), problems)]
        graph = None if changed else self._graph(chains, self._checks, PLAIN)
        if graph is not None:
            graph.load(chains)
            graph.replay(chains, t)
            pairs = zip(chains, graph.carries, strict=True)
            changed = [chain.problem for chain, replayed in pairs if not chain.agrees(replayed)]
        for problem in changed:
            self.mark_unrecordable(problem)
        return None if changed else graph

    def _replay(
        self, round_chains: Sequence[RoundChain], steps: tuple[int, int], size: int, known: list[StepGraph]
    ) -> int:
        """Run steps by a graph of `size` steps; return the number of finished steps of the round."""
        start, stop = steps
        if start == stop:
            return start
        options = self._options
        chains = [ReplayedChain(one, start, stop, size, options.memory_format) for one in round_chains]
        graph = self._graph(chains, known, options)
        if graph is None:
            return start
        graph.load(chains)
        done = start
        while done < stop and graph.replay(chains, done):
            check_interrupt()
            done += size
        graph.unload(chains, done - start)
        return done

    @property
    def fuses_steps(self) -> bool:
        """True if whole steps are compiled."""
        return self.fuse == "steps"

    @property
    def _options(self) -> GraphOptions:
        fuse = self.fuse if self._compiles else None
        return GraphOptions(self.two_streams, fuse, self.autotune, self.tf32, self.autocast, self.channels_last)

    def _obstacle(self, round_chains: Sequence[RoundChain]) -> str | None:
        """Return why the steps cannot be captured; None if they can."""
        if round_chains[0].chain.plan.trajectory.problem.device.type != "cuda":
            return "the model is not on a CUDA device"
        return next((reason for one in round_chains if (reason := recording_obstacle(one))), None)

    def _graph(self, chains: list[ReplayedChain], known: list[StepGraph], options: GraphOptions) -> StepGraph | None:
        """Return the graph of these chains from `known`; capture it and add it if it is not there."""
        for found in known:
            if found.matches(chains):
                return found
        if any(chain.segment.is_same_function(failed) for chain in chains for failed in self._failed):
            return None
        try:
            with options.precision():
                warmed_up = known is not self._checks and options == PLAIN
                graph = StepGraph(
                    chains, options, self._shared, self._compiled, warmed_up=warmed_up, pool=self._memory()
                )
        except Exception as error:  # a model may do anything that cannot be captured
            torch.cuda.synchronize()
            if options.fuse is not None:
                log.warning('without fuse="%s" from now on: %s: %s', options.fuse, type(error).__name__, error)
                self._compiles = False
                return self._graph(chains, known, self._options)
            log.info("steps are run one by one: capturing them failed with %s: %s", type(error).__name__, error)
            self._failed.append(chains[0].segment)
            return None
        del known[: max(0, len(known) + 1 - (MOST_CHECKS if known is self._checks else MOST_GRAPHS))]
        known.append(graph)
        return graph


def _short_end_obstacle(chain: Chain, first: int) -> str | None:
    """Return why a graph of the end of a round does not pay or is not possible, judged by the plan of the round."""
    plan, steps = chain.plan, chain.plan.inner_steps - first
    if first == 0 and plan.skippable_steps > 1:
        return "the first steps are captured by themselves"
    if steps == 0:
        return "the risk at θ_T alone takes as long as the comparison with the present functions"
    if steps > FEW_STEPS:
        return f"an end of {steps} steps takes long to capture"
    return estimator_obstacle(chain)


def _graph_size(steps: int, most: int, stride: int) -> int:
    """Return the number of steps per replay: about `most` or down to half of it.

    A second graph runs the steps that are left over. Both are captured step by step, which takes time, so the size is
    the one with the fewest steps in both. It is a multiple of the stride, so that all graphs measure at the same steps.
    """
    largest = -(-most // stride) * stride
    sizes = range(largest, max(largest // 2, stride) - 1, -stride)
    return min(sizes, key=lambda size: size + steps % size)


def _step_all(round_chains: Sequence[RoundChain], t: int) -> None:
    """Run step t of every chain eagerly."""
    for round_chain in round_chains:
        round_chain.step(t)
