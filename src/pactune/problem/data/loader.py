"""A `DataLoader` with a custom sampler, whose batches can only be read in its own order."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from pactune.errors import DataError, SettingError
from pactune.problem.data.source import Batch, Source, count_rows, move, quietly, reading
from pactune.streams import Streams

__all__ = ["LoaderBatches"]


class LoaderBatches(Source):
    """A `DataLoader` with a custom sampler; its batches are read in its own order.

    Draws from torch's global generators are a function of the seed. A generator that the sampler itself holds is not
    seeded.
    """

    replayable = False

    def __init__(self, loader: DataLoader[Any], *, role: str, device: torch.device) -> None:
        self._loader, self._role, self._device = loader, role, device
        self._positions: dict[str, tuple[int, Iterator[Batch]]] = {}
        self._count: int | None = None
        self._risk_on_all = False

    @property
    def rows(self) -> int:
        """The number of rows; the first access reads the loader once to count them."""
        if self._count is None:
            self._count = sum(batch.rows for batch in self.epoch())
        return self._count

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Read on to the step, from the position of this reader."""
        position, stream = self._positions.get(reader, (0, self._forever(streams, role)))
        if step == 0:
            position, stream = 0, self._forever(streams, role)
        if step < position:
            raise DataError(
                f"the {role} DataLoader has a sampler of its own, so step {step} cannot be replayed after step "
                f"{position - 1}; pass its dataset with `batch_size=` instead"
            )
        for _ in range(step - position):
            next(stream)
        self._positions[reader] = (step + 1, stream)
        return next(stream)

    def epoch(self) -> Iterator[Batch]:
        """Read the loader once."""
        return quietly(self._once())

    def risk_batches(self, round_index: int, streams: Streams, reader: str = "") -> Iterable[Batch]:
        """Return the loader's next batch, or all batches."""
        if self._risk_on_all:
            return super().risk_batches(round_index, streams, reader)
        return [self.batch(round_index, streams, "risk", f"{reader} risk")]

    def with_risk_size(self, size: int | None) -> Source:
        """Return the same loader with the risk on all of its batches.

        Raises:
            SettingError: `size` is a number; the loader decides how many rows a batch has.
        """
        if size is not None:
            raise SettingError(
                f"`risk_batch_size` must be None or left out where `{self._role}` is a DataLoader with a sampler of "
                f"its own, which makes the batches, got {size}"
            )
        twin = self.uncached()
        twin._risk_on_all = True
        return twin

    def uncached(self) -> LoaderBatches:
        """Return the same loader without its reading positions."""
        twin = copy.copy(self)
        twin._positions = {}
        return twin

    def reread(self) -> Iterator[Batch]:
        """Read the loader once more, with other random draws."""
        return quietly(self._once(), key=1)

    def _once(self) -> Iterator[Batch]:
        empty = True
        with reading(f"the DataLoader of `{self._role}`"):
            for data in self._loader:
                empty = False
                moved = move(data, self._device)
                yield Batch(moved, count_rows(moved))
        if empty:
            raise DataError(
                f"`{self._role}` is a DataLoader that yields no batch: it is empty, or can be read only once; pass a "
                "dataset whose `__iter__` starts anew each time"
            )

    def _forever(self, streams: Streams, role: str) -> Iterator[Batch]:
        for epoch in itertools.count():
            yield from quietly(self._once(), streams.key("loader", role, epoch))
