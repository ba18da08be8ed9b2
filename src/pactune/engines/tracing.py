"""Record a function as a list of tensor operations, without autograd and without Python between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pactune.engines.layout import TensorList

__all__ = ["Program", "trace"]

Program = Callable[..., Sequence[Tensor]]


def trace(function: Callable[..., TensorList], example: TensorList, *, transpose: bool = False) -> fx.GraphModule:
    """Record the tensor operations of a function, and remove those that only autograd needed.

    Args:
        function: a function from tensors to tensors.
        example: the tensors with which it is recorded.
        transpose: compute tall batched products as transposes, see `_transpose_products`.
    """
    graph = make_fx(function)(*example)
    if transpose:
        _transpose_products(graph)
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _transpose_products(graph: fx.GraphModule) -> None:
    """Replace batched products by the transpose of the swapped product where that is faster.

    If the result has more rows than columns, AᵀB becomes (BᵀA)ᵀ. The weight gradient of a stacked layer has the first
    form. The second one is several times faster on a CPU, and the next operations then read memory in order. On a CPU
    ABᵀ, the layer itself, becomes (BAᵀ)ᵀ too.
    """
    bmm, transpose = torch.ops.aten.bmm.default, torch.ops.aten.transpose.int

    def transposed(node: fx.Node) -> fx.Node:
        if _is_transpose(node):
            return node.args[0]  # type: ignore[return-value]
        return graph.graph.call_function(transpose, (node, 1, 2))

    for node in list(graph.graph.nodes):
        if node.target is not bmm:
            continue
        left, right = (_without_views(arg) for arg in node.args)
        result = node.meta["val"]
        tall = result.shape[-1] < result.shape[-2]
        if tall and (_is_transpose(left) or (_is_transpose(right) and result.device.type == "cpu")):
            with graph.graph.inserting_before(node):
                product = graph.graph.call_function(bmm, (transposed(right), transposed(left)))
                node.replace_all_uses_with(graph.graph.call_function(transpose, (product, 1, 2)))
            graph.graph.erase_node(node)


def _without_views(node: fx.Node) -> fx.Node:
    """Return the node before all views that keep the shape."""
    aten = torch.ops.aten
    while node.target in (aten.expand.default, aten.view.default, aten._unsafe_view.default):
        before: fx.Node = node.args[0]  # type: ignore[assignment]
        if before.meta["val"].shape != node.meta["val"].shape:
            break
        node = before
    return node


def _is_transpose(node: fx.Node) -> bool:
    """Return True if a node transposes a batch of matrices."""
    axes = node.args[1:]
    return node.target is torch.ops.aten.transpose.int and sorted(a % 3 for a in axes) == [1, 2]  # type: ignore[operator]
