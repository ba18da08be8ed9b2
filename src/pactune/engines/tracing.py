"""Record a function as a list of tensor operations, without autograd and without Python between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pactune.engines import rewrites
from pactune.engines.layout import TensorList

__all__ = ["Program", "trace"]

Program = Callable[..., Sequence[Tensor]]


def trace(
    function: Callable[..., TensorList], example: TensorList, *, transpose: bool = False, merge: bool = False
) -> fx.GraphModule:
    """Record the tensor operations of a function, and remove those that only autograd needed.

    Args:
        function: a function from tensors to tensors.
        example: the tensors with which it is recorded.
        transpose: compute batched products and softmax along the axis that is faster, which changes the last bits.
        merge: leave out operations that compute nothing new, which changes no bit.
    """
    # make_fx describes every result by a fake tensor; without a mode at hand it makes a new one for each of them.
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        graph = make_fx(function)(*example)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.graph.erase_node(node)
    if transpose:
        rewrites.transpose_softmax(graph)
        rewrites.transpose_products(graph)
    if merge:
        rewrites.leave_out_shape_lenders(graph)
        rewrites.shorten_squared_errors(graph)
        rewrites.shorten_sums(graph)
        rewrites.remove_empty_operations(graph)
        rewrites.merge_equal_operations(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
