"""Rewrites of recordings that are compiled for a GPU: operations for which the compiler has better kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from pactune.engines.rewrites import is_transpose, without_views

__all__ = ["add_up_windows", "split_long_sums"]

aten = torch.ops.aten
MOST_TAPS = 9  # places in a window; a kernel that reads more of them at once is slower than one that scatters
TILE = 64  # rows and columns of the part of a product that a block computes
BLOCKS = 128  # that fill a device
LEAST = 128  # rows in a group; fewer are not worth a block of their own
MOST_PRODUCTS = 6  # in a batch that is split: both gradients of three runs. PyTorch 2.11 cannot compile the sums of 20.


def add_up_windows(graph: fx.GraphModule) -> None:
    """Replace the adjoint of `unfold` by a sum over the places in a window.

    The compiler makes two kernels of the adjoint: one fills zeros, and one adds the windows to them in any order. It
    fuses a sum with other operations, and the order of a sum is fixed.
    """
    for node in graph.graph.find_nodes(op="call_function", target=aten.unfold_backward.default):
        arguments: Any = node.args
        windows, shape, axis, size, step = arguments
        if size > MOST_TAPS:
            continue
        value, count = node.meta["val"], windows.meta["val"].shape[axis]
        with graph.graph.inserting_before(node):
            call = graph.graph.call_function
            zeros = call(aten.full.default, (shape, 0), {"dtype": value.dtype, "device": value.device})
            total = None
            for place in range(size):
                values = call(aten.select.int, (windows, -1, place))
                end = place + (count - 1) * step + 1
                spread = call(aten.slice_scatter.default, (zeros, values, axis, place, end, step))
                total = spread if total is None else call(aten.add.Tensor, (total, spread))
        assert total is not None
        _replace(node, total)
    graph.recompile()


def split_long_sums(graph: fx.GraphModule) -> None:
    """Split the sums in batched products AᵀB that have too few tiles to fill a device.

    A block computes a tile of one product, with a loop over the rows of A and B. The weight gradient of a convolution
    has small matrices and thousands of pixels as rows, so a few blocks would run for long. Here groups of rows become
    products of their own, which are added up in the end.
    """
    for node in graph.graph.find_nodes(op="call_function", target=aten.bmm.default):
        arguments: Any = node.args
        left, right = map(without_views, arguments)
        if not is_transpose(left):
            continue
        rows: Any = left.args[0]
        batch, count, m = rows.meta["val"].shape
        n = right.meta["val"].shape[-1]
        parts = _parts(count, batch * math.ceil(m / TILE) * math.ceil(n / TILE))
        if parts == 1 or batch > MOST_PRODUCTS:
            continue
        with graph.graph.inserting_before(node):
            call = graph.graph.call_function
            grouped = [batch * parts, count // parts]
            one, other = (call(aten.reshape.default, (x, [*grouped, size])) for x, size in ((rows, m), (right, n)))
            products = call(aten.bmm.default, (call(aten.transpose.int, (one, 1, 2)), other))
            total = call(aten.sum.dim_IntList, (call(aten.view.default, (products, [batch, parts, m, n])), [1]))
        _replace(node, total)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _replace(node: fx.Node, found: fx.Node) -> None:
    found.meta.update(node.meta)
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)


def _parts(count: int, blocks: int) -> int:
    """Return into how many equal groups to split rows, so that about `BLOCKS` blocks work on them.

    >>> _parts(2450, 18), _parts(9800, 2), _parts(2450, 180), _parts(200, 2)
    (7, 56, 1, 1)
    """
    most = min(BLOCKS // blocks, count // LEAST)
    return next((parts for parts in range(most, 1, -1) if count % parts == 0), 1)
