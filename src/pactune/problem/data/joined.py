"""Join the mini-batches of several runs into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pactune.problem.data.source import Batch, map_tensors

__all__ = ["BatchJoiner", "tensors_of"]


class BatchJoiner:
    """Joins the mini-batches of all runs into one. A batch that all runs share is returned unchanged.

    The last result is cached, so that full batches are joined once.
    """

    def __init__(self) -> None:
        self._last: tuple[list[Batch], Batch] | None = None

    def __call__(self, batches: Sequence[Batch]) -> Batch:
        """Return the joined batch."""
        if self._last is not None and all(a is b for a, b in zip(self._last[0], batches, strict=True)):
            return self._last[1]
        joined = _join(batches)
        self._last = (list(batches), joined)
        return joined


def _join(batches: Sequence[Batch]) -> Batch:
    first, parts = batches[0], [tensors_of(batch) for batch in batches]
    if all(a is b for part in parts for a, b in zip(parts[0], part, strict=True)):
        return first
    columns = iter([torch.stack(column) for column in zip(*parts, strict=True)])
    data, numbers = map_tensors((first.data, first.numbers), lambda _: next(columns))
    return Batch(data, first.rows, numbers, stacked=True)


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return the tensors of a mini-batch in a fixed order."""
    found: list[Tensor] = []
    map_tensors((batch.data, batch.numbers), lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found
