"""Record a function as a list of tensor operations, without autograd and without Python between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pactune.engines.layout import TensorList

__all__ = ["Program", "trace"]

VIEWS = (torch.ops.aten.expand.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)

Program = Callable[..., Sequence[Tensor]]


def trace(
    function: Callable[..., TensorList], example: TensorList, *, transpose: bool = False, merge: bool = False
) -> fx.GraphModule:
    """Record the tensor operations of a function, and remove those that only autograd needed.

    Args:
        function: a function from tensors to tensors.
        example: the tensors with which it is recorded.
        transpose: compute tall batched products as transposes, see `_transpose_products`.
        merge: compute equal operations once, see `_merge_equal_operations`.
    """
    graph = make_fx(function)(*example)
    if transpose:
        _transpose_products(graph)
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    if merge:
        _remove_empty_operations(graph)
        _merge_equal_operations(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _remove_empty_operations(graph: fx.GraphModule) -> None:
    """Remove views that keep the shape, and sums with zeros."""
    changed = _changed_in_place(graph)
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        if node in changed or changed.intersection(node.all_input_nodes):
            continue
        if node.target in VIEWS:
            same = _without_views(node)
        elif node.target is aten.add.Tensor and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args):
            same = next((b for a, b in (node.args, node.args[::-1]) if _is_zero(a) and _alike(b, node)), node)
        else:
            continue
        if same is not node:
            node.replace_all_uses_with(same)
            graph.graph.erase_node(node)


def _is_zero(node: fx.Node) -> bool:
    return node.target in (torch.ops.aten.zeros_like.default, torch.ops.aten.zeros.default)


def _alike(node: fx.Node, other: fx.Node) -> bool:
    """Return True if two nodes have tensors of one type, shape and order in memory, so that kernels round alike."""
    a, b = node.meta["val"], other.meta["val"]
    return bool((a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()))


def _changed_in_place(graph: fx.GraphModule) -> set[fx.Node]:
    """Return the tensors that operations change in place, with all other tensors of these operations."""
    return {arg for node in graph.graph.nodes if _is_mutable(node) for arg in (node, *node.all_input_nodes)}


def _merge_equal_operations(graph: fx.GraphModule) -> None:
    """Compute once what several operations compute from the same tensors.

    The derivatives of a round run its steps a second time, to save memory in long rounds. Tensors that are changed in
    place keep all their operations.
    """
    changed = _changed_in_place(graph)
    known: dict[Any, fx.Node] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node in changed or changed.intersection(node.all_input_nodes):
            continue
        key = _key((node.target, node.args, node.kwargs))
        if key in known:
            node.replace_all_uses_with(known[key])
            graph.graph.erase_node(node)
        else:
            known[key] = node


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _key(value: Any) -> Any:
    """Return a key that is equal for equal arguments of an operation. 1, 1.0 and True are different arguments."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(part) for part in value)
    if isinstance(value, dict):
        return tuple((name, _key(part)) for name, part in value.items())
    return (type(value), value)


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
    while node.target in VIEWS:
        before: fx.Node = node.args[0]  # type: ignore[assignment]
        if before.meta["val"].shape != node.meta["val"].shape:
            break
        node = before
    return node


def _is_transpose(node: fx.Node) -> bool:
    """Return True if a node transposes a batch of matrices."""
    axes = node.args[1:]
    return node.target is torch.ops.aten.transpose.int and sorted(a % 3 for a in axes) == [1, 2]  # type: ignore[operator]
