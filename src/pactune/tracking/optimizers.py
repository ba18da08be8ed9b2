"""The state of a torch optimizer after its first step: names, types and shapes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

__all__ = ["describe_memory", "fits_memory"]

MOST = 2**53
STEP = "step"  # the count of steps
SIZE = 2  # of every axis of the stand-ins; a reduced axis has size 1


def describe_memory(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, str]] | None:
    """Return the state of every parameter in words, by the parameter's number; None if it cannot be found out.

    A new optimizer of the same class takes one step on stand-ins for the parameters. The user's optimizer is not
    changed.
    """
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or kind is torch.optim.LBFGS:
        return None
    try:
        twin = kind([_stand_ins(group) for group in optimizer.param_groups])  # type: ignore[call-arg]
        twin.step()
    except (RuntimeError, TypeError, ValueError):  # the optimizer needs further arguments or special gradients
        return None
    states = twin.state_dict()["state"]
    return {str(key): {name: _words(value) for name, value in state.items()} for key, state in states.items()}


def fits_memory(state: dict[str, Any], expected: dict[str, str], shape: list[int]) -> bool:
    """Return True if a parameter of this shape may have this state."""
    if state.keys() != expected.keys():
        return False
    counts = {name for name, words in expected.items() if name == STEP or (shape and words.startswith("()"))}
    return all(
        _is_count(state[name], expected[name]) if name in counts else _has_shape_of(state[name], expected[name], shape)
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
    """True if a value is a number of steps or a rate: a scalar ≥ 0."""
    if isinstance(value, Tensor):
        return _words(value) == expected and bool(((value >= 0) & torch.isfinite(value)).all())
    return type(value).__name__ == expected and (not isinstance(value, (int, float)) or 0 <= value < MOST)


def _has_shape_of(value: object, expected: str, shape: list[int]) -> bool:
    """True if a value has the type and shape of the stand-in's, with the parameter's sizes for the stand-in's."""
    if not isinstance(value, Tensor):
        return type(value).__name__ == expected and not isinstance(value, (int, float))
    small = re.findall(r"\d+", expected.partition(")")[0])
    if len(small) != len(shape):
        return False
    sizes = [full if size == str(SIZE) else int(size) for size, full in zip(small, shape, strict=True)]
    return _words(value) == f"{tuple(sizes)} {expected.rpartition(' ')[2]}"
