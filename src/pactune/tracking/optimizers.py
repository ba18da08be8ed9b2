"""What an optimizer of torch remembers after its first step: names, types and shapes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

__all__ = ["describe_memory", "fits_memory"]

MOST = 2**53
STEP = "step"  # how often a parameter has moved
SIZE = 2  # of every axis of the stand-ins; an axis that is reduced has 1


def describe_memory(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, str]] | None:
    """Return what is remembered of every parameter by its number, None where that cannot be known.

    A new optimizer of the same kind takes one step on stand-ins of the parameters, so nothing of the user's is touched.
    """
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or kind is torch.optim.LBFGS:
        return None
    try:
        twin = kind([_stand_ins(group) for group in optimizer.param_groups])  # type: ignore[call-arg]
        twin.step()
    except (RuntimeError, TypeError, ValueError):  # it needs arguments or gradients of its own
        return None
    state = twin.state_dict()["state"]
    return {str(key): {name: _words(value) for name, value in held.items()} for key, held in state.items()}


def fits_memory(held: dict[str, Any], expected: dict[str, str], shape: list[int]) -> bool:
    """Tell whether this may be remembered of a parameter of this shape."""
    if held.keys() != expected.keys():
        return False
    counts = {name for name, words in expected.items() if name == STEP or (shape and words.startswith("()"))}
    return all(
        _is_count(held[name], expected[name]) if name in counts else _is_like(held[name], expected[name], shape)
        for name in expected
    )


def _stand_ins(group: dict[str, Any]) -> dict[str, Any]:
    small = [torch.zeros([SIZE] * value.ndim, dtype=value.dtype, device="cpu") for value in group["params"]]
    for value in small:
        value.grad = torch.zeros_like(value)
    options = {name: value for name, value in group.items() if name not in ("params", "fused", "capturable")}
    return {**options, "params": [value.requires_grad_() for value in small]}


def _words(value: object) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _is_count(value: object, expected: str) -> bool:
    """Tell whether a value is a number of steps or a rate: a scalar ≥ 0."""
    if isinstance(value, Tensor):
        return _words(value) == expected and bool(((value >= 0) & torch.isfinite(value)).all())
    return type(value).__name__ == expected and (not isinstance(value, (int, float)) or 0 <= value < MOST)


def _is_like(value: object, expected: str, shape: list[int]) -> bool:
    """Tell whether a value is like that of the stand-in, with the parameter's axes for those of the stand-in."""
    if not isinstance(value, Tensor):
        return type(value).__name__ == expected and not isinstance(value, (int, float))
    small = re.findall(r"\d+", expected.partition(")")[0])
    if len(small) != len(shape):
        return False
    sizes = [full if size == str(SIZE) else int(size) for size, full in zip(small, shape, strict=True)]
    return _words(value) == f"{tuple(sizes)} {expected.rpartition(' ')[2]}"
