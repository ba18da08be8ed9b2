"""Backward passes without the checks of `torch.autograd.grad` give what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pactune.hypergradient import gradients
from pactune.hypergradient.gradients import backward_pass


class Marked(Tensor):
    """A tensor of another type."""


def example(kind: type[Tensor] = Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return two functions, three inputs of which one is unused, and two cotangents."""
    draw = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(3, generator=draw, dtype=torch.float64) for _ in range(3))
    inputs = [a.as_subclass(kind).requires_grad_(), nn.Parameter(b), c.requires_grad_()]
    outputs = [inputs[0] ** 3 * inputs[1], (inputs[1] ** 2).sum()]
    return outputs, inputs, [torch.ones(3, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("edges", [False, True])
def test_the_result_is_that_of_torch(graph: bool, edges: bool) -> None:
    outputs, inputs, cotangents = example()
    functions: Any = [get_gradient_edge(output) for output in outputs] if edges else outputs
    wanted = torch.autograd.grad(
        functions, inputs, cotangents, retain_graph=True, create_graph=graph, allow_unused=True
    )
    found = backward_pass(functions, inputs, cotangents, retain=True, graph=graph)
    assert found[2] is None is wanted[2]
    for own, theirs in zip(found[:2], wanted[:2], strict=True):
        assert own is not None
        assert torch.equal(own, theirs)
        assert own.requires_grad is graph
    assert not edges or isinstance(functions[0], GradientEdge)


def test_a_graph_that_is_not_retained_is_freed() -> None:
    outputs, inputs, cotangents = example()
    backward_pass(outputs, inputs, cotangents)
    with pytest.raises(RuntimeError, match="second time"):
        backward_pass(outputs, inputs, cotangents)


def test_a_cotangent_of_another_shape_is_refused() -> None:
    outputs, inputs, (_, last) = example()
    with pytest.raises(RuntimeError, match="shape"):
        backward_pass(outputs, inputs, [torch.ones(2, dtype=torch.float64), last])


@pytest.mark.parametrize(("kind", "through_torch"), [(Tensor, False), (Marked, True)])
def test_tensors_of_other_types_go_through_torch(
    kind: type[Tensor], through_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = list[bool]()
    grad = torch.autograd.grad
    monkeypatch.setattr(gradients.torch.autograd, "grad", lambda *a, **o: called.append(True) or grad(*a, **o))
    backward_pass(*example(kind))
    assert bool(called) is through_torch
