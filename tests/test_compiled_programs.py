"""Chains whose recorded steps are equal share a compiled program; any difference keeps them apart."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pactune.engines import compiling
from pactune.engines.compiling import CompiledPrograms
from pactune.engines.tracing import trace

Step = Callable[[Tensor, Tensor], list[Tensor]]


def step(factor: float = 2.0, constant: Tensor | None = None) -> Step:
    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        return [a * factor + (b if constant is None else constant)]

    return function


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the recordings that were compiled; the compiler is left out."""
    found: list[object] = []
    monkeypatch.setattr(compiling, "compile_graph", lambda graph, _: found.append(graph) or graph)
    return found


def program(programs: CompiledPrograms, function: Step, rows: int = 3):
    example = [torch.ones(rows), torch.ones(rows)]
    return programs.compile(trace(function, example), example)


def test_equal_recordings_are_compiled_once(compiled: list[object]) -> None:
    programs, constant = CompiledPrograms(), torch.arange(3.0)
    first = program(programs, step())
    assert program(programs, step()) is first
    with_constant = program(programs, step(constant=constant))
    assert program(programs, step(constant=constant.clone())) is with_constant
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (step(), step(factor=3.0)),
        (step(constant=torch.arange(3.0)), step(constant=torch.arange(3.0) + 1)),
        (step(constant=torch.arange(3.0)), step(constant=torch.arange(3.0, dtype=torch.float64))),
    ],
    ids=["a number", "a constant", "the type of a constant"],
)
def test_other_recordings_are_compiled_apart(base: Step, other: Step, compiled: list[object]) -> None:
    programs = CompiledPrograms()
    first, second = program(programs, base), program(programs, other)
    assert len(compiled) == 2
    x = torch.ones(3)
    torch.testing.assert_close(list(first(x, x)), base(x, x))
    torch.testing.assert_close(list(second(x, x)), other(x, x))


def test_other_shapes_and_strides_are_compiled_apart(compiled: list[object]) -> None:
    programs, x = CompiledPrograms(), torch.ones(3, 4)
    for example in ([x, x], [x.t(), x.t()], [x.t().contiguous(), x.t().contiguous()]):
        programs.compile(trace(step(), example), example)
    assert len(compiled) == 3


@pytest.mark.slow
def test_a_compiled_program_is_found_on_disk(tmp_path: Path) -> None:
    """A second process finds the kernels of the first one."""
    code = """
import torch
from torch._dynamo.utils import counters
from pactune.engines.compiling import compile_graph
from pactune.engines.tracing import trace

def function(a, b):
    return [a * 2 + b.sum(), (a - b).tanh()]

example = [torch.ones(3, 4), torch.arange(12.0).reshape(3, 4)]
found = compile_graph(trace(function, example), example)(*example)
torch.testing.assert_close(list(found), function(*example))
print(counters["inductor"]["fxgraph_cache_hit"])
"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    hits = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [int(hit.stdout) for hit in hits] == [0, 1]
