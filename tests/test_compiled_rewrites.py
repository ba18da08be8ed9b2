"""Rewrites of recordings that are compiled for a GPU: the same numbers up to rounding, by other operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pactune.engines import compiling
from pactune.engines.compiled_rewrites import MOST_TAPS, add_up_windows, split_long_sums
from pactune.engines.tracing import trace

aten = torch.ops.aten


def windowed(size: int, step: int) -> Callable[[Tensor], list[Tensor]]:
    """Return the gradient of a weighted sum over the windows along the first axis."""

    def gradient(a: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            leaf = a.detach().requires_grad_()
            windows = leaf.unfold(0, size, step)
            weights = torch.arange(1.0, windows.numel() + 1, dtype=a.dtype).reshape(windows.shape)
            return list(torch.autograd.grad((windows * weights).sum(), leaf))

    return gradient


@pytest.mark.parametrize(("size", "step"), [(1, 1), (3, 1), (3, 2), (2, 3), (4, 4)])
def test_the_adjoint_of_windows_is_a_sum(size: int, step: int) -> None:
    example = torch.randn(11, 2, dtype=torch.float64)
    graph = trace(windowed(size, step), [example])
    add_up_windows(graph)
    assert not graph.graph.find_nodes(op="call_function", target=aten.unfold_backward.default)
    torch.testing.assert_close(graph.forward(example), windowed(size, step)(example), rtol=1e-14, atol=0)


def test_the_adjoint_of_long_windows_stays() -> None:
    graph = trace(windowed(MOST_TAPS + 1, 1), [torch.ones(11, 2)])
    add_up_windows(graph)
    assert graph.graph.find_nodes(op="call_function", target=aten.unfold_backward.default)


def products(transposed: bool) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Return a function with AᵀB and its square; A may be stored transposed."""

    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        found = torch.bmm((a.transpose(1, 2).contiguous() if transposed else a.transpose(1, 2)), b)
        return [found, found**2]

    return function


def shapes(graph: torch.fx.GraphModule, *example: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of the results of batched products."""
    found: list[tuple[int, ...]] = []

    class Noting(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):  # type: ignore[no-untyped-def]
            result = super().call_function(target, args, kwargs)
            if target is aten.bmm.default:
                found.append(tuple(result.shape))
            return result

    Noting(graph).run(*example)
    return found


@pytest.mark.parametrize(
    ("batch", "length", "m", "n", "parts"),
    [(2, 2450, 64, 576, 7), (6, 9800, 49, 64, 20), (7, 9800, 49, 64, 1), (2, 2437, 8, 8, 1), (2, 200, 8, 8, 1)],
)
def test_a_long_sum_is_split_if_few_blocks_would_work_on_it(
    batch: int, length: int, m: int, n: int, parts: int
) -> None:
    example = [torch.randn(batch, length, size, dtype=torch.float64) for size in (m, n)]
    graph = trace(products(transposed=False), example)
    split_long_sums(graph)
    assert shapes(graph, *example) == [(batch * parts, m, n)]
    # thousands of terms in float64, added up in another order
    torch.testing.assert_close(graph.forward(*example), products(transposed=False)(*example), rtol=1e-10, atol=1e-10)


def test_a_matrix_that_is_stored_by_rows_is_not_split() -> None:
    example = [torch.randn(1, 9800, size, dtype=torch.float64) for size in (4, 5)]
    graph = trace(products(transposed=True), example)
    split_long_sums(graph)
    assert shapes(graph, *example) == [(1, 4, 5)]


def test_rows_that_are_no_view_are_copied() -> None:
    """The gradient of a layer's output may be stored with the channels first."""

    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        return [torch.bmm(a.transpose(1, 2), b)]

    rows = torch.randn(2, 16, 2450, dtype=torch.float64).transpose(1, 2)
    example = [rows, torch.randn(2, 2450, 8, dtype=torch.float64)]
    graph = trace(function, example)
    split_long_sums(graph)
    assert shapes(graph, *example)[0][0] > 2
    torch.testing.assert_close(graph.forward(*example), function(*example), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_recordings_for_a_gpu_are_rewritten(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(compiling, "add_up_windows", called.append)
    monkeypatch.setattr(compiling, "split_long_sums", called.append)
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    example = [torch.ones(3, device=device)]
    compiling.compile_graph(trace(lambda a: [a + 1], example), example)
    assert len(called) == (2 if device == "cuda" else 0)
