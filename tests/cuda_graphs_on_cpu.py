"""An emulation of CUDA graphs on a CPU: recordings of tensor operations, which a graph runs again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from pactune.engines import Captured, choice, cuda_graph, end_graph
from pactune.engines.graph_options import GraphOptions
from pactune.engines.segment import flat_function
from pactune.engines.tracing import trace


class Graph:
    """Replays by calling what was captured."""

    body: Any = None

    def replay(self) -> None:
        with torch.no_grad():
            self.body()


class Stream:
    def wait_stream(self, other: object) -> None:
        """Do nothing: a CPU has one stream."""


@contextmanager
def capture(graph: Graph, pool: object = None) -> Iterator[None]:
    graph.body = sys._getframe(2).f_locals["body"]
    yield


def recorded(chain: Any, options: GraphOptions, compiled: Any = None) -> Any:
    """Return the steps as a list of tensor operations, which keeps what Python said, as a CUDA graph does."""
    function = flat_function(chain.segment, chain.layouts)
    return trace(function, [*chain.carry, *chain.hyper, *chain.data]).forward


def recorded_end(end: Any) -> Any:
    """Return an end as a list of tensor operations, which always writes its results into the same memory."""
    program = trace(flat_function(end.function, end.layouts), [*end.start, *end.hyper, *end.data]).forward
    memory: list[Tensor] = []

    def run(*tensors: Tensor) -> list[Tensor]:
        versions = [tensor._version for tensor in tensors]
        with torch.no_grad():
            found = program(*tensors)
        assert versions == [tensor._version for tensor in tensors]  # no input is overwritten
        if not memory:
            memory.extend(tensor.clone() for tensor in found)
        for place, value in zip(memory, found, strict=True):
            place.copy_(value)
        return memory

    return run


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the captured engine run on a CPU."""
    monkeypatch.setattr(cuda_graph, "new_stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100, 100))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(cuda_graph, "step_program", recorded)
    monkeypatch.setattr(end_graph, "end_program", recorded_end)
    monkeypatch.setattr(Captured, "_obstacle", lambda self, round_chains: None)
    monkeypatch.setattr(choice, "_checked", lambda engine, problem: engine)
