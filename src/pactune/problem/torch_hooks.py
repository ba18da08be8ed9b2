"""The functions that torch calls before or after the forward and the backward pass of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["registered_hooks"]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OPTIONS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


def registered_hooks(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the hooks of a module by name, for instance "_forward_hooks.0", and the options of their registration.

    The names count the hooks of each kind in the order of their calls. torch's own keys differ between equal modules.
    """
    stores = vars(module)
    if not any(map(stores.get, HOOKS)):  # the usual case; snapshots ask in every round
        return
    for kind in HOOKS:
        for i, (key, hook) in enumerate(stores[kind].items()):
            yield f"{kind}.{i}", hook
            yield from ((f"{name}.{i}", True) for name in OPTIONS if name.startswith(kind) and key in stores[name])
    if stores["_backward_hooks"]:
        yield "_is_full_backward_hook", stores["_is_full_backward_hook"]
