"""Call a module's code with other tensors in the place of its parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import nn

from pactune.trees import Params

__all__ = ["TensorSlots", "call_with"]

T = TypeVar("T")
Store = dict[str, Any]


class TensorSlots:
    """Where tensors live inside modules, by a name of ours; a tensor may live in several places (tied weights).

    `torch.func.functional_call` does the same and looks every name up again at every call, which costs more than the
    forward of a small model. Here the look-up is done once.
    """

    def __init__(self) -> None:
        self._places: list[tuple[str, Store, str]] = []
        self._fixed: list[tuple[Store, str, Any]] = []

    def fix(self, store: Store, attribute: str, value: Any) -> None:
        """Note an attribute that is to have this value in every call, whatever tensors are put in place."""
        self._fixed.append((store, attribute, value))

    def add(self, name: str, module: nn.Module, attribute: str) -> None:
        """Note that `module.attribute` is the tensor called `name`."""
        store: Store = module._parameters if attribute in module._parameters else module._buffers
        self._places.append((name, store, attribute))

    def tensors(self) -> Params:
        """Return what is in place, by name."""
        return {name: tensor for name, store, attribute in self._places if (tensor := store[attribute]) is not None}

    def put(self, tensors: Params) -> list[tuple[Store, str, Any]]:
        """Put tensors in place; return what was there."""
        before = [(store, attribute, store[attribute]) for store, attribute, _ in self._fixed]
        for store, attribute, value in self._fixed:
            store[attribute] = value
        for name, store, attribute in self._places:
            if name in tensors:
                before.append((store, attribute, store[attribute]))
                store[attribute] = tensors[name]
        return before

    def collect(self, tensors: Params) -> None:
        """Take up what a forward assigned anew, as some modules do with their buffers."""
        for name, store, attribute in self._places:
            present = store[attribute]
            if name in tensors and present is not None:
                tensors[name] = present


def call_with(
    parts: Iterable[tuple[TensorSlots, Params]], function: Callable[[], T], *, collect: TensorSlots | None = None
) -> T:
    """Call a function while the tensors are in place, and put everything back however it ends.

    Args:
        parts: places and the tensors that go there.
        function: what to call.
        collect: places whose tensors the function may assign anew; its entry of `parts` is updated.
    """
    before: list[tuple[Store, str, Any]] = []
    parts = list(parts)
    try:
        for places, tensors in parts:
            before += places.put(tensors)
        value = function()
        for places, tensors in parts:
            if places is collect:
                places.collect(tensors)
        return value
    finally:
        for store, attribute, tensor in reversed(before):
            store[attribute] = tensor


def owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule that holds a dotted name, and the last part of the name."""
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute
