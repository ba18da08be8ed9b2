"""Checks of losses on a few rows, before training starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pactune.errors import DataError, PactuneError, SettingError
from pactune.nested import items_of, map_tensors, tensors_in
from pactune.problem.data import Batch
from pactune.problem.data.take_rows import LAYOUTS, first_rows, take_rows

__all__ = ["as_risk", "is_sum", "layout", "naming_failure", "structure"]

FEW = 4  # rows that a loss is called on
CLOSE = 1e-3  # relative rounding of a sum over few rows, in any floating-point type


def is_sum(risk: Callable[[Batch], Tensor], batch: Batch) -> bool:
    """Return True if the loss is a sum over the rows: it doubles when every row is there twice.

    A loss that fails on these rows returns False, since it may need batches of one size.
    """
    if not _has_rows(batch):
        return False
    few = min(batch.rows, FEW)
    first = Batch(map_tensors(batch.data, lambda t: first_rows(t, few)), few, _map(batch.numbers, lambda t: t[:few]))
    twice = Batch(map_tensors(first.data, _double), 2 * few, _map(first.numbers, _double))
    try:
        one, two = float(risk(first)), float(risk(twice))
    except Exception:  # the loss is the user's and may do anything
        return False
    return one != 0 and abs(two - 2 * one) <= CLOSE * abs(one)


def as_risk(what: str, value: object) -> Tensor:
    """Return the value of a loss; raise unless it is one real number."""
    if not isinstance(value, Tensor) or value.ndim != 0 or value.is_complex():
        kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.ndim else type(value).__name__
        kind = "a complex number" if isinstance(value, Tensor) and value.is_complex() else kind
        raise SettingError(f"{what} must be a scalar tensor, the mean over the rows, got {kind}")
    return value


@contextmanager
def naming_failure(what: str, role: str) -> Iterator[None]:
    """Turn an error of the user's code into a `DataError` that names the code and the data set."""
    try:
        yield
    except (PactuneError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the model and the losses are the user's and may do anything
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DataError(f"{what} fails on the first batch of `{role}`: {type(error).__name__}: {reason}") from error


def structure(data: Any) -> str:
    """Describe how the parts of a batch are nested and how many dimensions each tensor has.

    >>> structure((torch.ones(3, 2), torch.ones(3)))
    '(2 dimensions, 1 dimension)'
    """
    return _described(data, lambda tensor: f"{tensor.ndim} dimension{'' if tensor.ndim == 1 else 's'}")


def layout(data: Any) -> str:
    """Describe how the parts of a batch are nested, and the type and shape of a row of each tensor.

    >>> layout((torch.ones(3, 2), torch.ones(3)))
    '(float32 of shape (2,), float32 of shape ())'
    """
    return _described(data, lambda t: f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape[1:])}")


def _described(data: Any, words: Callable[[Tensor], str]) -> str:
    if isinstance(data, Tensor):
        return words(data)
    parts = items_of(data)
    if parts is None:
        return type(data).__name__
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{name!r}: {_described(part, words)}" for name, part in sorted(parts)) + "}"
    inner = ", ".join(_described(part, words) for _, part in parts)
    return f"({inner})"


def _has_rows(batch: Batch) -> bool:
    """True if every tensor of a batch has rows that can be taken, one per row of the batch."""
    found = tensors_in(batch.data)
    return bool(found) and all(t.layout in LAYOUTS and t.ndim > 0 and len(t) == batch.rows for t in found)


def _double(tensor: Tensor) -> Tensor:
    return take_rows(tensor, torch.arange(len(tensor), device=tensor.device).repeat(2))


def _map(tensor: Tensor | None, function: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if tensor is None else function(tensor)
