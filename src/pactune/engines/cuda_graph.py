"""CUDA graphs: their capture, and the graph of several inner steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from pactune.engines.compiling import CompiledPrograms
from pactune.engines.graph_options import GraphOptions
from pactune.engines.layout import TensorList
from pactune.engines.replayed_chain import ReplayedChain
from pactune.engines.static_tensors import SharedTensors, StaticData
from pactune.engines.step_programs import new_stream, step_program
from pactune.engines.tracing import Program
from pactune.rounds.engine import log
from pactune.trees import copy_tensors_

__all__ = ["Pool", "StepGraph", "capture_side_by_side"]

Pool = Any  # what `torch.cuda.graph_pool_handle` returns
WARM_UPS = 2  # runs before the capture, in which libraries choose their kernels and allocate memory


class StepGraph:
    """A captured graph of the steps of all chains, and its static tensors.

    Args:
        chains: the chains, with the steps to capture.
        options: the options of the engine.
        shared: the static tensors of carries and λ, which graphs share that never run at the same time.
        compiled: the compiled programs of the engine, which the same graphs share.
        warmed_up: True if another graph has run the kernels of these steps.
        pool: memory for the results of operations, which the same graphs share.

    Attributes:
        longer: graphs of more steps. A round uses them only if this graph agreed with an eager step of the round.
    """

    def __init__(
        self,
        chains: list[ReplayedChain],
        options: GraphOptions,
        shared: SharedTensors,
        compiled: CompiledPrograms,
        *,
        warmed_up: bool = False,
        pool: Pool = None,
    ) -> None:
        self.longer: list[StepGraph] = []
        self._segments, self._layouts = [chain.segment for chain in chains], [chain.layouts for chain in chains]
        numbered = list(enumerate(chains))
        self._carries = [shared.find(("carry", i), chain.static_copies(chain.carry)) for i, chain in numbered]
        self._hypers = [shared.find(("hyper", i), chain.static_copies(chain.hyper)) for i, chain in numbered]
        self._data = [StaticData(chain.static_copies(chain.data)) for chain in chains]
        programs = [step_program(chain, options, compiled) for chain in chains]
        hypers = [hyper.tensors for hyper in self._hypers]
        steps = [partial(_run_steps, *part) for part in zip(programs, self.carries, hypers, self._data, strict=True)]
        self._graph = capture_side_by_side(steps, 0 if warmed_up else WARM_UPS, pool)

    @property
    def carries(self) -> list[TensorList]:
        """The static tensors of every chain's carry."""
        return [carry.tensors for carry in self._carries]

    def matches(self, chains: list[ReplayedChain]) -> bool:
        """Return True if the graph was captured for these chains."""
        if len(chains) != len(self._segments):
            return False
        triples = zip(chains, self._segments, self._layouts, strict=True)
        return all(
            chain.segment.is_same_function(segment) and chain.layouts == layouts for chain, segment, layouts in triples
        )

    def load(self, chains: list[ReplayedChain]) -> None:
        """Copy the chains' carries and λ into the static tensors."""
        for chain, carry, hyper in zip(chains, self._carries, self._hypers, strict=True):
            carry.load(chain.carry)
            hyper.load(chain.hyper)

    def replay(self, chains: list[ReplayedChain], start: int) -> bool:
        """Copy the data of the next steps and run them; return False if the data has another layout."""
        read = [chain.reader.read_flat(start, chain.size) for chain in chains]
        if any(layout != chain.data_layout for chain, (_, layout) in zip(chains, read, strict=True)):
            log.info("steps are run one by one: mini-batches differ in size; take one that divides the rows")
            return False
        for (values, _), static in zip(read, self._data, strict=True):
            static.load(values)
        self._graph.replay()
        return True

    def unload(self, chains: list[ReplayedChain], steps: int) -> None:
        """Let the chains continue from the static carries."""
        for chain, carry in zip(chains, self._carries, strict=True):
            chain.continue_from(carry.tensors, steps)


def _run_steps(program: Program, carry: TensorList, hyper: TensorList, data: StaticData) -> None:
    """Run the steps of a chain, and write the result into its static carry."""
    copy_tensors_(carry, list(program(*carry, *hyper, *data.tensors)))


def capture_side_by_side(
    parts: Sequence[Callable[[], None]], warm_ups: int = WARM_UPS, pool: Pool = None
) -> torch.cuda.CUDAGraph:
    """Capture several functions in one graph, each on a stream of its own.

    Args:
        parts: functions without arguments, one per chain.
        warm_ups: the number of runs before the capture.
        pool: memory that is shared with other graphs; None for memory of its own.
    """
    streams = [new_stream() for _ in parts]

    def body() -> None:
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        for part, stream in zip(parts, streams, strict=True):
            with torch.cuda.stream(stream):
                part()
        for stream in streams:
            main.wait_stream(stream)

    return _capture(body, warm_ups, pool)


def _capture(body: Callable[[], None], warm_ups: int, pool: Pool) -> torch.cuda.CUDAGraph:
    """Run a function without arguments `warm_ups` times, and capture it."""
    side = new_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(warm_ups):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with _no_collection(), torch.cuda.graph(graph, pool=pool), torch.no_grad():
        body()
    return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Stop the garbage collector: if it frees an older graph during a capture, the capture fails.

    A collection takes a tenth of a second, longer than the capture of a small model. So it runs before a capture only
    if memory is short.
    """
    free, total = torch.cuda.mem_get_info()
    if free < total / 2:
        gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
