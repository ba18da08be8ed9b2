"""Find the parts of a model that training does not make. Only the user knows which data they have seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["untrained_parts"]

TABLES = set(vars(nn.Module()))  # the attributes in which torch holds parameters, buffers and sub-modules


def untrained_parts(model: nn.Module, *, drawn: bool = False) -> list[str]:
    """Return the untrained parts in words: frozen parameters, buffers, and tensors or arrays in plain attributes.

    The statistics of normalisation layers are left out, because training makes them.

    Args:
        model: any model.
        drawn: True if the modules' `reset_parameters` draw θ_0. Such methods of the user are listed too, because they
            may set pre-trained values.
    """
    owned = {id(part) for part in (*model.parameters(), *model.buffers(), *model.modules())}
    found = [f"the frozen parameter {name}" for name, p in model.named_parameters() if not p.requires_grad]
    for name, module in model.named_modules():
        where = f" of {name}" if name else ""
        if not isinstance(module, _NormBase):
            own = module.named_buffers(recurse=False)
            found += [f"the buffer {key}{where}" for key, value in own if _informs(value)]
        found += [
            f"the attribute {key}{where}"
            for key, value in vars(module).items()
            if key not in TABLES and _holds(value, owned)
        ]
        if drawn and _draws_itself(module):
            found.append(f"a reset_parameters of its own{where}")
    return found


def _holds(value: Any, owned: set[int]) -> bool:
    """True if a plain attribute holds numbers that are no parameter, buffer or sub-module of the model."""
    if isinstance(value, (dict, list, tuple)):
        parts = value.values() if isinstance(value, dict) else value
        return any(_holds(part, owned) for part in parts)
    return (isinstance(value, nn.Module) or _informs(value)) and id(value) not in owned


def _informs(value: Any) -> bool:
    """True if a value holds numbers that may come from data; a single whole number is a counter."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.numel() > 1
    return isinstance(value, np.ndarray) and value.size > 1


def _draws_itself(module: nn.Module) -> bool:
    reset = getattr(module, "reset_parameters", None)
    return callable(reset) and not str(getattr(reset, "__module__", "")).startswith("torch.")
