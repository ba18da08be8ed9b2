"""Tensors at fixed addresses, from which CUDA graphs read. Graphs that never run at the same time share them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from weakref import WeakValueDictionary

from torch import Tensor

from pactune.engines.layout import TensorList, tensor_forms
from pactune.trees import copy_tensors_

__all__ = ["SharedTensors", "StaticData", "StaticTensors"]


class StaticTensors:
    """A list of static tensors. Every graph that uses it holds this object, so that it lives as long as they do.

    Attributes:
        tensors: the tensors.
    """

    def __init__(self, tensors: TensorList) -> None:
        self.tensors = tensors

    def load(self, values: Sequence[Tensor]) -> None:
        """Copy values into the tensors."""
        copy_tensors_(self.tensors, values)


class SharedTensors:
    """Static tensors by their place and form.

    A graph loads them before it runs, and nobody reads them after another graph has been loaded. A state of a large
    model has the size of several models, so graphs of the same chains should not have one each.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, StaticTensors] = WeakValueDictionary()

    def find(self, place: Hashable, copies: TensorList) -> StaticTensors:
        """Return the tensors of a place that look like `copies`; the copies themselves if there are none."""
        key = place, tensor_forms(copies)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = StaticTensors(copies)
        else:
            known.load(copies)
        return known


class StaticData:
    """The data that a graph reads, in tensors at fixed addresses.

    Attributes:
        tensors: the static tensors.
    """

    def __init__(self, tensors: TensorList) -> None:
        self.tensors = tensors
        self._loaded: list[Tensor | None] = [None] * len(tensors)

    def load(self, values: Sequence[Tensor]) -> None:
        """Copy data into the static tensors, except tensors that were copied last time, such as a full batch."""
        for i, (static, value) in enumerate(zip(self.tensors, values, strict=True)):
            if self._loaded[i] is not value:
                static.copy_(value)
                self._loaded[i] = value
