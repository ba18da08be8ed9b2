"""Call modules with other tensors in place of their parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from pactune.trees import Params

__all__ = ["TensorSlots", "call_with", "without_cast_cache"]

T = TypeVar("T")
Store = dict[str, Any]


class TensorSlots:
    """The attributes of modules that hold tensors, by name. One name may have several slots (tied weights).

    `torch.func.functional_call` does the same and looks every name up again at every call, which costs more than the
    forward of a small model. Here the look-up is done once.
    """

    def __init__(self) -> None:
        self._slots: list[tuple[str, Store, str]] = []
        self._fixed: list[tuple[Store, str, Any]] = []

    def fix(self, store: Store, attribute: str, value: Any) -> None:
        """Set `store[attribute]` to this value during every call, in addition to the tensors."""
        self._fixed.append((store, attribute, value))

    def add(self, name: str, module: nn.Module, attribute: str) -> None:
        """Add the slot `module.attribute` of the tensor `name`."""
        store: Store = module._parameters if attribute in module._parameters else module._buffers
        self._slots.append((name, store, attribute))

    def tensors(self) -> Params:
        """Return the tensors that the modules hold now, by name."""
        return {name: tensor for name, store, attribute in self._slots if (tensor := store[attribute]) is not None}

    def put(self, tensors: Params) -> list[tuple[Store, str, Any]]:
        """Put tensors into their slots; return the previous contents."""
        before = [(store, attribute, store[attribute]) for store, attribute, _ in self._fixed]
        for store, attribute, value in self._fixed:
            store[attribute] = value
        for name, store, attribute in self._slots:
            if name in tensors:
                before.append((store, attribute, store[attribute]))
                store[attribute] = tensors[name]
        return before

    def collect(self, tensors: Params) -> None:
        """Copy into `tensors` the tensors that a forward assigned, as some modules do with their buffers."""
        for name, store, attribute in self._slots:
            present = store[attribute]
            if name in tensors and present is not None:
                tensors[name] = present


def call_with(
    parts: Iterable[tuple[TensorSlots, Params]], function: Callable[[], T], *, collect: TensorSlots | None = None
) -> T:
    """Call a function while modules hold the given tensors. The previous tensors are restored, after an error too.

    Args:
        parts: slots and the tensors to put into them.
        function: the function to call.
        collect: slots into which the function may assign new tensors; they are written to its tensors in `parts`.
    """
    before: list[tuple[Store, str, Any]] = []
    parts = list(parts)
    try:
        for slots, tensors in parts:
            before += slots.put(tensors)
        value = function()
        for slots, tensors in parts:
            if slots is collect:
                slots.collect(tensors)
        return value
    finally:
        for store, attribute, tensor in reversed(before):
            store[attribute] = tensor


def owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule that holds a dotted name, and the last part of the name."""
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute


@contextmanager
def without_cast_cache(device: torch.device) -> Iterator[None]:
    """Switch off the cache of a `torch.autocast` block around this one, and restore it on exit.

    The cache keeps the cast of every leaf until the outermost block ends. Every inner step has leaves of its own, so it
    would keep a copy of the model per step. A parameter that is changed in place would keep its old cast.
    """
    before = torch.is_autocast_cache_enabled()
    if torch.is_autocast_enabled(device.type):  # a block inside the model takes over the setting, so leave it otherwise
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
