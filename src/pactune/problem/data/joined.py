"""Join the mini-batches of several runs into one, and map a function over the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from pactune.errors import DataError
from pactune.nested import flatten, map_tensors, other_leaf, tensors_in
from pactune.problem.data.source import Batch
from pactune.problem.data.taken import memory_of

__all__ = ["BatchJoiner", "first_of_stack", "over_runs", "same_tensor", "tensors_of"]


class BatchJoiner:
    """Joins the mini-batches of all runs into one. A tensor that all runs share is not copied.

    The last result is cached, so that full batches are joined once.

    Args:
        compare: True also shares tensors of equal values. It pays for full batches, which are compared once.
    """

    def __init__(self, *, compare: bool = False) -> None:
        self._compare = compare
        self._last: tuple[list[Batch], Batch] | None = None

    def __call__(self, batches: Sequence[Batch]) -> Batch:
        """Return the joined batch.

        Raises:
            DataError: the batches differ in more than the values of their tensors.
        """
        if self._last is not None and all(a is b for a, b in zip(self._last[0], batches, strict=True)):
            return self._last[1]
        joined = _join(batches, compare=self._compare)
        self._last = (list(batches), joined)
        return joined


def _join(batches: Sequence[Batch], *, compare: bool) -> Batch:
    first, flat = batches[0], [flatten(batch.data) for batch in batches]
    leaves, nesting = flat[0]
    if any(other != nesting for _, other in flat) or other_leaf(leaves):
        raise DataError("mini-batches can be joined if they are made alike and hold tensors alone")
    parts = [*zip(*(own for own, _ in flat), strict=True), [batch.numbers for batch in batches]]
    columns = [_joined_column(column, compare=compare) for column in parts]
    tensors = [(value, shared) for value, shared in columns if isinstance(value, Tensor)]
    shared = frozenset(i for i, (_, shared) in enumerate(tensors) if shared)
    if len(shared) == len(tensors):
        return first
    *values, numbers = [value for value, _ in columns]
    return Batch(nesting.restore(values), first.rows, numbers, stacked=True, shared=shared)


def _joined_column(column: Sequence[Any], *, compare: bool) -> tuple[Any, bool]:
    """Return one leaf of all runs as one, and True if it is the leaf of each of them."""
    first = column[0]
    if all(same_tensor(first, other, compare=compare) for other in column[1:]):
        return first, True
    return torch.stack(list(column)), False


def same_tensor(a: Any, b: Any, *, compare: bool = False) -> bool:
    """True if two leaves are one: the same object or the same memory, or with `compare` the same values."""
    if a is b:
        return True
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.layout == b.layout == torch.strided and a.device == b.device):
        return False
    if a.data_ptr() == b.data_ptr() and (memory := memory_of([a])) is not None and memory == memory_of([b]):
        return True
    return compare and torch.equal(a, b)


def over_runs(function: Callable[..., Any], batch: Batch, *trees: Any) -> Any:
    """Map `function(batch, *trees)` over the runs: the leading axis of the trees and of a stacked batch."""
    leaves, nesting = flatten((batch.data, batch.numbers))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    axes = [0 if batch.stacked and i not in batch.shared else None for i in range(len(tensors))]

    def one(tensors: list[Tensor], *trees: Any) -> Any:
        own = iter(tensors)
        data, numbers = nesting.restore([next(own) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        return function(Batch(data, batch.rows, numbers), *trees)

    return torch.vmap(one, in_dims=(axes, *[0] * len(trees)))(tensors, *trees)


def first_of_stack(batch: Batch) -> Batch:
    """Return the mini-batch of the first run."""
    if not batch.stacked:
        return batch
    place = count()
    data, numbers = map_tensors((batch.data, batch.numbers), lambda t: t if next(place) in batch.shared else t[0])
    return Batch(data, batch.rows, numbers)


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return the tensors of a mini-batch in a fixed order."""
    return tensors_in((batch.data, batch.numbers))
