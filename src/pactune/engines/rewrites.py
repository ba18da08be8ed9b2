"""Rewrites of recorded operations that leave out work: equal operations, values that only lend a shape, transposes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

__all__ = [
    "call_directly",
    "hold_constants",
    "hold_numbers",
    "is_transpose",
    "leave_out_shape_lenders",
    "merge_equal_operations",
    "remove_empty_operations",
    "shorten_squared_errors",
    "shorten_sums",
    "transpose_products",
    "transpose_softmax",
    "without_views",
]

aten = torch.ops.aten
VIEWS = (aten.expand.default, aten.view.default, aten._unsafe_view.default)
CONSTANTS = {  # the number that each of these operations fills a tensor with
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
}
FILLS = {aten.full.default, aten.ones.default, aten.zeros.default}
OF_CONSTANTS = {  # what a backward pass makes of the tensor of ones that it starts with
    *VIEWS,
    aten.unsqueeze.default,
    aten.div.Scalar,
    aten.div.Tensor,
    aten.mul.Scalar,
    aten.mul.Tensor,
    aten.neg.default,
}
DIRECT: dict[Any, Callable[..., Any]] = {  # functions of torch that run the same kernel after a shorter call
    aten.abs.default: torch.abs,
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.clamp.Tensor: torch.clamp,
    aten.clamp_min.default: torch.clamp_min,
    aten.div.Scalar: torch.div,
    aten.div.Tensor: torch.div,
    aten.div_.Scalar: torch.Tensor.div_,
    aten.exp.default: torch.exp,
    aten.expand.default: torch.Tensor.expand,
    aten.full.default: torch.full,
    aten.log.default: torch.log,
    aten.maximum.default: torch.maximum,
    aten.mean.dim: torch.mean,
    aten.minimum.default: torch.minimum,
    aten.mm.default: torch.mm,
    aten.mul.Scalar: torch.mul,
    aten.mul.Tensor: torch.mul,
    aten.mv.default: torch.mv,
    aten.neg.default: torch.neg,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.relu.default: torch.relu,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.sqrt.default: torch.sqrt,
    aten.stack.default: torch.stack,
    aten.sub.Tensor: torch.sub,
    aten.sum.default: torch.sum,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unbind.int: torch.unbind,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.Tensor.view,
    aten.zeros.default: torch.zeros,
    aten._foreach_add_.List: torch._foreach_add_,
    aten._foreach_add_.Scalar: torch._foreach_add_,
    aten._foreach_addcmul.Scalar: torch._foreach_addcmul,
    aten._foreach_addcmul_.Scalar: torch._foreach_addcmul_,
    aten._foreach_div_.List: torch._foreach_div_,
    aten._foreach_div_.Tensor: torch._foreach_div_,
    aten._foreach_lerp.Scalar: torch._foreach_lerp,
    aten._foreach_mul.Scalar: torch._foreach_mul,
    aten._foreach_mul.Tensor: torch._foreach_mul,
    aten._foreach_sqrt.default: torch._foreach_sqrt,
    aten._log_softmax.default: torch._log_softmax,
    aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
}
UNDECLARED = ("running_mean", "running_var")  # batch_norm writes into them, and its schema does not say so
PRECISE = (torch.float32, torch.float64)  # kernels of other types compute in another type than that of their tensors
MEAN = 1  # the number of reduction="mean" in an operation
MOST_HELD = 2**14  # numbers in a constant that is kept; to make a larger one takes no longer than to read it
SHORT = 16  # numbers in a vector register. The kernel of a softmax over fewer adjacent numbers is ten times slower.


def call_directly(graph: fx.GraphModule) -> None:
    """Replace operations by functions of torch, since a call through `torch.ops` takes longer than a small kernel."""
    for node in _calls(graph):
        if node.target in DIRECT:
            _replace(node, DIRECT[node.target], node.args, dict(node.kwargs))
    graph.recompile()


def hold_numbers(graph: fx.GraphModule) -> None:
    """Keep the numbers that tensors are multiplied by as tensors, since torch would make one at every call."""
    for index, node in enumerate(_calls(graph)):
        if node.target not in (aten.mul.Tensor, aten.mul.Scalar) or not isinstance(node.args[1], float):
            continue
        value = node.meta["val"]
        if value.dtype in PRECISE and value.device.type == "cpu" and node.args[0].meta["val"].dtype == value.dtype:  # type: ignore[union-attr]
            setattr(graph, f"number_{index}", torch.tensor(node.args[1], dtype=value.dtype, device="cpu"))
            with graph.graph.inserting_before(node):
                held = graph.graph.create_node("get_attr", f"number_{index}")
            _replace(node, aten.mul.Tensor, (node.args[0], held), {})


def hold_constants(graph: fx.GraphModule) -> None:
    """Keep the tensors that depend on no input, such as the gradient with which a backward pass starts.

    A tensor that an operation changes, or that the graph returns, is made anew at every call.
    """
    owners = _owners(graph)
    returned = {owners[node] for node in graph.graph.output_node().all_input_nodes}
    anew = {node for node, owner in owners.items() if owner in returned} | _changed_in_place(graph)
    constants: dict[fx.Node, Tensor] = {}
    for node in _calls(graph):
        known = node.target in FILLS or (node.target in OF_CONSTANTS and constants.keys() >= {*node.all_input_nodes})
        if known and node not in anew and node.meta["val"].numel() <= MOST_HELD:
            constants[node] = node.target(*fx.map_arg(node.args, constants.get), **node.kwargs)  # type: ignore[operator]
    for index, node in enumerate([node for node in constants if not constants.keys() >= node.users.keys()]):
        setattr(graph, f"constant_{index}", constants[node])
        with graph.graph.inserting_before(node):
            node.replace_all_uses_with(graph.graph.create_node("get_attr", f"constant_{index}"))
    graph.graph.eliminate_dead_code()


def leave_out_shape_lenders(graph: fx.GraphModule) -> None:
    """Replace tensors of zeros and ones that take their shape from another tensor.

    A backward pass starts with `ones_like(loss)`. With a known shape nothing needs the loss itself any more.
    """
    for node in _calls(graph):
        if node.target not in CONSTANTS or not node.meta["val"].is_contiguous():
            continue
        value = node.meta["val"]
        options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        _replace(node, aten.full.default, (list(value.shape), CONSTANTS[node.target]), options)


def shorten_squared_errors(graph: fx.GraphModule) -> None:
    """Replace the gradient of a mean squared error by a difference times a number.

    The operation also multiplies by the gradient of the loss, which is 1 where a backward pass starts.
    """
    for node in _calls(graph):
        if node.target is not aten.mse_loss_backward.default or node.args[3] != MEAN or not _is_one(node.args[0]):
            continue
        output, target = node.args[1:3]
        value = node.meta["val"]
        if value.dtype in PRECISE and value.is_contiguous() and _alike(output, node) and _alike(target, node):
            with graph.graph.inserting_before(node):
                difference = graph.graph.call_function(aten.sub.Tensor, (output, target))
            difference.meta["val"] = value
            _replace(node, aten.mul.Tensor, (difference, 2 / value.numel()), {})


def shorten_sums(graph: fx.GraphModule) -> None:
    """Let a sum drop its axes, instead of keeping them for a view that drops them."""
    changed = _changed_in_place(graph)
    for node in _calls(graph):
        total: Any = node.args[0] if node.target is aten.view.default else None
        if total is None or total.target is not aten.sum.dim_IntList or len(total.args) < 3 or len(total.users) > 1:
            continue
        summed, axes, _ = total.args
        shape = summed.meta["val"].shape
        left = [size for axis, size in enumerate(shape) if axis not in {given % len(shape) for given in axes}]
        if left == list(node.meta["val"].shape) and summed not in changed:
            _replace(node, aten.sum.dim_IntList, (summed, axes), total.kwargs)


def remove_empty_operations(graph: fx.GraphModule) -> None:
    """Remove views that keep the shape, transposes of transposes, sums with zeros, and products with 1."""
    for node in _calls(graph):  # a tensor that only this operation reads need not be changed in place
        if node.target is aten.add_.Tensor and list(node.args[0].users) == [node] and _is_zero(node.args[0]):  # type: ignore[union-attr]
            _replace(node, aten.add.Tensor, node.args, node.kwargs)
    changed = _changed_in_place(graph)
    for node in _calls(graph):
        if node in changed or changed.intersection(node.all_input_nodes):
            continue
        same = _same_value(node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.graph.erase_node(node)


def _same_value(node: fx.Node) -> fx.Node:
    """Return the node whose value a node repeats; the node itself if it computes a value of its own."""
    if node.target in VIEWS:
        return without_views(node)
    if is_transpose(node) and is_transpose(node.args[0]):  # type: ignore[arg-type]
        return node.args[0].args[0]  # type: ignore[union-attr,return-value]
    if node.target is aten.mul.Scalar and node.args[1] == 1 and _alike(node.args[0], node):
        return node.args[0]  # type: ignore[return-value]
    if node.target is aten.add.Tensor and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args):
        pairs = (node.args, node.args[::-1])
        return next((b for a, b in pairs if _is_zero(a) and _alike(b, node)), node)  # type: ignore[return-value]
    return node


def merge_equal_operations(graph: fx.GraphModule) -> None:
    """Compute once what several operations compute from the same tensors.

    The steps of a segment read the same rows, and the derivatives of a round run its steps a second time. Tensors that
    are changed in place keep all their operations.
    """
    changed = _changed_in_place(graph)
    known: dict[Any, fx.Node] = {}
    for node in _calls(graph):
        if node in changed or changed.intersection(node.all_input_nodes):
            continue
        key = _key((node.target, node.args, node.kwargs))
        if key in known:
            node.replace_all_uses_with(known[key])
            graph.graph.erase_node(node)
        else:
            known[key] = node


def transpose_products(graph: fx.GraphModule) -> None:
    """Replace batched products by the transpose of the swapped product where that is faster.

    If the result has more rows than columns, AᵀB becomes (BᵀA)ᵀ. The weight gradient of a stacked layer has the first
    form. The second one is several times faster on a CPU, and the next operations then read memory in order. On a CPU
    ABᵀ, the layer itself, becomes (BAᵀ)ᵀ too.
    """
    for node in _calls(graph):
        if node.target is not aten.bmm.default:
            continue
        left, right = (without_views(arg) for arg in node.args)  # type: ignore[arg-type]
        result = node.meta["val"]
        tall = result.shape[-1] < result.shape[-2]
        if tall and (is_transpose(left) or (is_transpose(right) and result.device.type == "cpu")):
            _replace_by_transpose(node, aten.bmm.default, [right, left], ())


def transpose_softmax(graph: fx.GraphModule) -> None:
    """Compute a log-softmax over a short last axis along the axis before it, with all its rows side by side."""
    for node in _calls(graph):
        if node.target not in (aten._log_softmax.default, aten._log_softmax_backward_data.default):
            continue
        value, count = node.meta["val"], 1 if node.target is aten._log_softmax.default else 2
        tensors, (axis, *others) = node.args[:count], node.args[count:]
        short = value.ndim > 2 and axis % value.ndim == value.ndim - 1 and value.shape[-1] < SHORT
        if short and value.device.type == "cpu":
            _replace_by_transpose(node, node.target, tensors, (value.ndim - 2, *others))


def _replace_by_transpose(node: fx.Node, target: Any, tensors: Any, others: tuple[Any, ...]) -> None:
    """Replace a node by the transpose of an operation on the transposes of some tensors."""
    graph = node.graph
    with graph.inserting_before(node):
        swapped = [_transposed(tensor) for tensor in tensors]
        found = graph.call_function(target, (*swapped, *others))
        found.meta["val"] = node.meta["val"].transpose(-2, -1)
    _replace(node, aten.transpose.int, (found, -2, -1), {})


def _transposed(node: fx.Node) -> fx.Node:
    """Return the transpose of a node, before which the graph is open."""
    before = without_views(node)
    if is_transpose(before):
        return before.args[0]  # type: ignore[return-value]
    found = node.graph.call_function(aten.transpose.int, (node, -2, -1))
    found.meta["val"] = node.meta["val"].transpose(-2, -1)
    return found


def _replace(node: fx.Node, target: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
    with node.graph.inserting_before(node):
        found = node.graph.call_function(target, args, options)
    found.meta.update(node.meta)
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)


def _calls(graph: fx.GraphModule) -> Iterator[fx.Node]:
    return (node for node in list(graph.graph.nodes) if node.op == "call_function")


def without_views(node: fx.Node) -> fx.Node:
    """Return the node before all views that keep the shape."""
    while node.target in VIEWS:
        before: fx.Node = node.args[0]  # type: ignore[assignment]
        if before.meta["val"].shape != node.meta["val"].shape:
            break
        node = before
    return node


def is_transpose(node: fx.Node) -> bool:
    """Return True if a node swaps the last two axes of a tensor."""
    if node.target not in (aten.t.default, aten.transpose.int):
        return False
    axes = node.meta["val"].ndim
    swapped = [axis % axes for axis in node.args[1:]] or range(axes)  # `t` swaps both axes
    return sorted(swapped) == [axes - 2, axes - 1]


def _is_zero(node: Any) -> bool:
    return (node.target is aten.full.default and node.args[1] == 0) or node.target is aten.zeros.default


def _is_one(node: Any) -> bool:
    return bool(node.target is aten.full.default and node.args[1] == 1)


def _alike(node: Any, other: Any) -> bool:
    """Return True if two nodes have tensors of one type, shape and order in memory, so that kernels round alike."""
    a, b = node.meta["val"], other.meta["val"]
    return bool((a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()))


def _changed_in_place(graph: fx.GraphModule) -> set[fx.Node]:
    """Return the tensors that share memory with a tensor that an operation changes in place."""
    owners = _owners(graph)
    touched = {owners[arg] for node in _calls(graph) for arg in _written(node)}
    return {node for node, owner in owners.items() if owner in touched}


def _owners(graph: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """Return for every tensor the one whose memory it shares, itself if it has its own."""
    owners: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        inputs = node.all_input_nodes
        owners[node] = owners[inputs[0]] if inputs and _is_alias(node) else node
    return owners


def _written(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that an operation changes in place; lists hold the tensors of `torch._foreach` operations."""
    schema = getattr(node.target, "_schema", None)
    arguments = [] if schema is None else schema.arguments
    given = {**dict(zip((a.name for a in arguments), node.args, strict=False)), **node.kwargs}
    names = [a.name for a in arguments if a.name in UNDECLARED or (a.alias_info is not None and a.alias_info.is_write)]
    lists = [one if isinstance(one, (list, tuple)) else [one] for one in map(given.get, names)]
    return [arg for one in lists for arg in one if arg is not None]


def _is_alias(node: fx.Node) -> bool:
    """Return True if the result of an operation shares memory with its first tensor."""
    if node.target is getitem or node.target in VIEWS:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(found.alias_info is not None for found in schema.returns)


def _key(value: Any) -> Any:
    """Return a key that is equal for equal arguments of an operation. 1, 1.0 and True are different arguments."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(part) for part in value)
    if isinstance(value, dict):
        return tuple((name, _key(part)) for name, part in value.items())
    return (type(value), value)
