"""Rows that were taken from tensors, kept once for all problems that take the same rows of the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from pactune.nested import flatten

__all__ = ["TakenRows", "memory_of", "take_once"]


class TakenRows:
    """Some rows of a data set, and the data set itself: as long as it lives, no other tensor has its address."""

    __slots__ = ("__weakref__", "data", "origin")

    def __init__(self, data: Any, origin: Any) -> None:
        self.data, self.origin = data, origin


_TAKEN: WeakValueDictionary[Any, TakenRows] = WeakValueDictionary()


def take_once(origin: Any, rows: Tensor, take: Callable[[], Any]) -> TakenRows:
    """Return some rows of a data set in memory. Cells of a grid that hold the same tensors get the same rows.

    Args:
        origin: the tensors, in any structure.
        rows: the numbers of the rows.
        take: takes them.
    """
    leaves, nesting = flatten(origin)
    memory = memory_of([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    if memory is None:
        return TakenRows(take(), origin)
    key = memory, nesting, rows.numpy().tobytes()
    found = _TAKEN.get(key)
    if found is None:
        found = _TAKEN[key] = TakenRows(take(), origin)
    return found


def memory_of(tensors: Sequence[Tensor]) -> tuple[Any, ...] | None:
    """Return where tensors lie in memory and their versions: equal for views of equal values; None if unknown."""
    if any(tensor.layout != torch.strided or tensor.is_inference() or not tensor.numel() for tensor in tensors):
        return None
    return tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t.device, t._version) for t in tensors)
