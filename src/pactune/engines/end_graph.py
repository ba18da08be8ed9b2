"""A CUDA graph of the ends of rounds, all chains side by side, and the graphs that an engine keeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from pactune.engines.cuda_graph import WARM_UPS, Pool, capture_side_by_side
from pactune.engines.layout import TensorList
from pactune.engines.replayed_chain import static_copies
from pactune.engines.replayed_end import ReplayedEnd
from pactune.engines.round_end import RoundEnd
from pactune.engines.segment import flat_function
from pactune.engines.static_tensors import SharedTensors, StaticData, StaticTensors
from pactune.engines.timing import least_seconds
from pactune.engines.tracing import Program
from pactune.problem.inner_problem import InnerProblem
from pactune.rounds.chain import ChainEnd
from pactune.rounds.engine import log

__all__ = ["EndGraph", "EndGraphs"]

MOST_GRAPHS = 4  # each holds memory on the device
WORTH = 0.8  # a graph pays if it and its check take at most this share of the time of eager ends


def end_program(end: ReplayedEnd) -> Program:
    """Return the end of a round as a function of flat tensors."""
    return flat_function(end.function, end.layouts)


class EndGraph:
    """A captured graph of the ends of the rounds of all chains, and its static tensors.

    The graph runs the kernels of an eager end. It reads its inputs from static tensors and leaves them as they are. Its
    results lie in the memory of the pool. They are copied at once, since the next graph of the pool may overwrite them.

    Args:
        ends: the ends to capture.
        shared: the static tensors of carries and λ, which graphs share that never run at the same time.
        pool: memory for the results of operations, which the same graphs share.
    """

    def __init__(self, ends: list[ReplayedEnd], shared: SharedTensors, pool: Pool = None) -> None:
        self.functions, self._layouts = [end.function for end in ends], [end.layouts for end in ends]
        self._inputs = [_static_inputs(i, end, shared) for i, end in enumerate(ends)]
        self._data = [StaticData(static_copies(end.data, end.problem.device)) for end in ends]
        self._found: list[TensorList] = [[] for _ in ends]
        programs = [end_program(end) for end in ends]
        parts = [partial(self._run, i, program) for i, program in enumerate(programs)]
        self._graph = capture_side_by_side(parts, WARM_UPS, pool)

    def _run(self, i: int, program: Program) -> None:
        """Run the end of chain i, and keep its result, so that the graph does not use this memory again."""
        with torch.enable_grad():  # as in an eager round
            inputs = [tensor for part in self._inputs[i] for tensor in part.tensors]
            self._found[i] = [tensor.detach() for tensor in program(*inputs, *self._data[i].tensors)]

    def matches(self, ends: list[ReplayedEnd]) -> bool:
        """Return True if the graph was captured for these ends."""
        return self.runs([end.function for end in ends]) and self._layouts == [end.layouts for end in ends]

    def runs(self, functions: Sequence[RoundEnd]) -> bool:
        """Return True if the graph computes these functions, for tensors of some shapes."""
        pairs = zip(self.functions, functions, strict=False)
        return len(functions) == len(self.functions) and all(own.is_same_function(other) for own, other in pairs)

    def is_of(self, problems: Sequence[InnerProblem]) -> bool:
        """Return True if the graph runs chains of these problems."""
        own = [function.trajectory.problem for function in self.functions]
        return len(own) == len(problems) and all(a is b for a, b in zip(own, problems, strict=True))

    def replay(self, ends: list[ReplayedEnd]) -> tuple[list[ChainEnd], list[TensorList]]:
        """Run the ends; return copies of their results and of the values of `probe`."""
        for end, inputs, data in zip(ends, self._inputs, self._data, strict=True):
            for static, values in zip(inputs, (end.carry, end.others, end.hyper), strict=True):
                static.load(values)
            data.load(end.data)
        self._graph.replay()
        results, probes = [], []
        for end, function, found in zip(ends, self.functions, self._found, strict=True):
            assert function.result is not None
            result, probed = function.result.restore([tensor.clone() for tensor in found])
            results.append(end.with_count(result))
            probes.append(probed)
        return results, probes


def _static_inputs(i: int, end: ReplayedEnd, shared: SharedTensors) -> list[StaticTensors]:
    """Return the static tensors of the carry, of the other parts of the start, and of λ of chain i."""
    parts = (("carry", end.carry), ("start", end.others), ("hyper", end.hyper))
    return [shared.find((name, i), static_copies(tensors, end.problem.device)) for name, tensors in parts]


class EndGraphs:
    """The graphs of ends that an engine keeps. A graph is trusted if its first results equal those of eager ends."""

    def __init__(self) -> None:
        self._graphs: list[EndGraph] = []
        self._eager: list[InnerProblem] = []  # problems whose ends are not captured

    def knows(self, functions: Sequence[RoundEnd]) -> bool:
        """Return True if these ends have been captured, for tensors of some shapes."""
        return any(graph.runs(functions) for graph in self._graphs)

    def stay_eager(self, functions: Sequence[RoundEnd]) -> bool:
        """Return True if the end of one of these problems could not be captured, or is faster without a graph."""
        return any(function.trajectory.problem is eager for function in functions for eager in self._eager)

    def find(
        self, ends: list[ReplayedEnd], shared: SharedTensors, pool: Pool, *, only_if_faster: bool = False
    ) -> EndGraph | None:
        """Return the graph of these ends; capture it if it is not there. Return None if they have to run eagerly.

        The graphs of other chains make room. If all graphs belong to these chains, their mini-batches have too many
        different sizes.

        Args:
            ends: the ends.
            shared: the static tensors of the engine's graphs.
            pool: the memory of the engine's graphs.
            only_if_faster: keep a new graph only if it is faster than the eager ends.
        """
        problems = [end.problem for end in ends]
        if known := next((graph for graph in self._graphs if graph.matches(ends)), None):
            return known
        if len(self._graphs) >= MOST_GRAPHS:
            other = next((graph for graph in self._graphs if not graph.is_of(problems)), None)
            if other is None:
                log.debug("the ends of rounds run eagerly: their mini-batches have too many different sizes")
                return None
            self._graphs.remove(other)
        graph = _captured(ends, shared, pool)
        if graph is not None and only_if_faster and not _is_faster(graph, ends):
            log.info("the ends of rounds run eagerly, which takes less time than a graph and its check")
            graph = None
        if graph is None:
            self._eager += problems
        else:
            self._graphs.append(graph)
        return graph


def _is_faster(graph: EndGraph, ends: list[ReplayedEnd]) -> bool:
    """Return True if a graph and its check take clearly less time than eager ends.

    Where kernels are large there is little to gain, and a graph costs memory.
    """
    eager, replayed = least_seconds(
        lambda: [end.run() for end in ends], lambda: (graph.replay(ends), [end.probe() for end in ends])
    )
    return replayed < WORTH * eager


def _captured(ends: list[ReplayedEnd], shared: SharedTensors, pool: Pool) -> EndGraph | None:
    """Capture the ends; return None if this fails or if the graph gives another result."""
    try:
        graph = EndGraph(ends, shared, pool)
        found, _ = graph.replay(ends)
    except Exception as error:  # a model may do anything that cannot be captured
        torch.cuda.synchronize()
        log.info("the ends of rounds run eagerly: capturing them failed with %s: %s", type(error).__name__, error)
        return None
    if all(end.agrees(one) for end, one in zip(ends, found, strict=True)):
        return graph
    log.warning("the ends of rounds run eagerly: a captured end does not give what the end itself gives")
    return None
