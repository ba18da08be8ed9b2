"""A CUDA graph of several inner steps, with the static tensors that it reads and writes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pactune.engines.graph_options import GraphOptions
from pactune.engines.replayed_chain import ReplayedChain
from pactune.engines.step_programs import CompiledPrograms, new_stream, step_program
from pactune.rounds.engine import log

__all__ = ["StepGraph"]

WARM_UPS = 2  # runs before the capture, in which libraries choose their kernels and allocate memory


class StepGraph:
    """A captured graph of the steps of all chains, and its static tensors.

    Args:
        chains: the chains, with the steps to capture.
        options: the options of the engine.
        warmed_up: True if another graph has run the kernels of these steps.

    Attributes:
        carries: the static tensors of every chain's carry.
        longer: graphs of more steps. A round uses them only if this graph agreed with an eager step of the round.
    """

    def __init__(self, chains: list[ReplayedChain], options: GraphOptions, *, warmed_up: bool = False) -> None:
        self.longer: list[StepGraph] = []
        self._segments, self._layouts = [chain.segment for chain in chains], [chain.layouts for chain in chains]
        self.carries = [chain.static_copies(chain.carry) for chain in chains]
        self._hypers = [chain.static_copies(chain.hyper) for chain in chains]
        self._data = [chain.static_copies(chain.data) for chain in chains]
        self._loaded: list[list[Tensor | None]] = [[None] * len(data) for data in self._data]
        compiled = CompiledPrograms()
        programs = [step_program(chain, options, compiled) for chain in chains]
        streams = [new_stream() for _ in chains]

        def body() -> None:
            """Run the steps of every chain on its own stream, and write the results into the static carries."""
            main = torch.cuda.current_stream()
            parts = zip(programs, streams, self.carries, self._hypers, self._data, strict=True)
            for stream in streams:
                stream.wait_stream(main)
            for program, stream, carry, hyper, data in parts:
                with torch.cuda.stream(stream):
                    after = program(*carry, *hyper, *data)
                    torch._foreach_copy_(carry, list(after))
            for stream in streams:
                main.wait_stream(stream)

        self._graph = _capture(body, 0 if warmed_up else WARM_UPS)

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
        for chain, carry, hyper in zip(chains, self.carries, self._hypers, strict=True):
            for static, value in zip([*carry, *hyper], [*chain.carry, *chain.hyper], strict=True):
                static.copy_(value)

    def replay(self, chains: list[ReplayedChain], start: int) -> bool:
        """Copy the data of the next steps and run them; return False if the data has another layout."""
        read = [chain.reader.read_flat(start, chain.size) for chain in chains]
        if any(layout != chain.data_layout for chain, (_, layout) in zip(chains, read, strict=True)):
            log.info("steps are run one by one: mini-batches differ in size; take one that divides the rows")
            return False
        for (values, _), statics, loaded in zip(read, self._data, self._loaded, strict=True):
            for i, (static, value) in enumerate(zip(statics, values, strict=True)):
                if loaded[i] is not value:  # a full batch is already there
                    static.copy_(value)
                    loaded[i] = value
        self._graph.replay()
        return True

    def unload(self, chains: list[ReplayedChain], steps: int) -> None:
        """Let the chains continue from the static carries."""
        for chain, carry in zip(chains, self.carries, strict=True):
            chain.continue_from(carry, steps)


def _capture(body: Callable[[], None], warm_ups: int) -> torch.cuda.CUDAGraph:
    """Run a function without arguments `warm_ups` times, and capture it."""
    side = new_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(warm_ups):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with _no_collection(), torch.cuda.graph(graph), torch.no_grad():
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
