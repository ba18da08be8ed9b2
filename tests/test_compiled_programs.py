"""Chains whose recorded steps are equal share a compiled program; any difference keeps them apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pactune.engines.step_programs import CompiledPrograms
from pactune.engines.tracing import trace

Step = Callable[[Tensor, Tensor], list[Tensor]]


def step(factor: float = 2.0, constant: Tensor | None = None) -> Step:
    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        return [a * factor + (b if constant is None else constant)]

    return function


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the recordings that were compiled; torch.compile is left out."""
    found: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda graph, **_: found.append(graph) or graph)
    return found


def program(programs: CompiledPrograms, function: Step, rows: int = 3):
    return programs.compile(trace(function, [torch.ones(rows), torch.ones(rows)]))


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


def test_a_shared_program_serves_other_sizes() -> None:
    programs = CompiledPrograms()
    first, second = program(programs, step(), rows=3), program(programs, step(), rows=5)
    assert first is second
    x = torch.ones(5)
    torch.testing.assert_close(list(second(x, x)), [3 * x])
