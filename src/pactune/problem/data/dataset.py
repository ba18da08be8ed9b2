"""A map-style `Dataset`, whose rows are read by number, in this process or in the workers of a `DataLoader`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from pactune.problem.data.indexed import Indexed, length_of, listed
from pactune.problem.data.prefetch import move
from pactune.problem.data.source import Batch, Source, quietly, reading
from pactune.problem.data.workers import BatchRequest, ReadAhead, WorkerSettings, read_rows
from pactune.streams import Streams

__all__ = ["DatasetRows"]


class DatasetRows(Indexed):
    """Rows of a map-style `Dataset`. Their order and their draws do not depend on the process that reads them.

    Args:
        dataset: the data set.
        device: the device to which batches are moved.
        batch_size: rows per mini-batch; None for all.
        collate: joins rows into a batch; None for torch's function, which also joins dataclasses here.
        shuffle: False keeps the order of the data set.
        drop_last: True drops the last batch of an epoch if it is smaller.
        workers: the settings of worker processes; None reads in this process.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        device: torch.device,
        batch_size: int | None,
        collate: Any = None,
        shuffle: bool = True,
        drop_last: bool = False,
        workers: WorkerSettings | None = None,
    ) -> None:
        super().__init__(length_of(dataset), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        self._dataset, self._device, self._collate, self._workers = dataset, device, collate or _collate, workers
        self._steps: dict[str, _StepReader] = {}
        self._passes: ReadAhead | None = None

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return all rows, or the next part of the epoch's permutation."""
        if self._workers is None or self.steady:
            return super().batch(step, streams, role, reader)
        if reader not in self._steps:
            self._steps[reader] = _StepReader(self, self._workers)
        return self._steps[reader].batch(step, streams, role)

    def first(self) -> Batch:
        """Return the first batch, which this process reads."""
        return self._whole() if self.steady else next(quietly(self._ordered(self._size)))

    def uncached(self) -> Source:
        """Return the same rows without cached batches and without workers."""
        twin = super().uncached()
        vars(twin).update(_steps={}, _passes=None)
        return twin

    def read_ahead(self) -> ReadAhead:
        """Return new workers."""
        assert self._workers is not None
        return ReadAhead(self._dataset, self._collate, self._workers, self._device)

    def read_now(self, step: int, streams: Streams, role: str) -> Batch:
        """Return the rows of a step, which this process reads."""
        return super().batch(step, streams, role)

    def request(self, step: int, streams: Streams, role: str) -> BatchRequest:
        """Return the rows of a step and their seed, for a worker."""
        return BatchRequest(streams.key("rows", role, step), self._step_rows(step, streams, role).tolist())

    def _chunks(self, size: int) -> Iterator[Batch]:
        if self._workers is None or size >= self.rows:
            return super()._chunks(size)
        if self._passes is None:
            self._passes = self.read_ahead()
        return super()._chunks(size) if self._passes.busy else self._pass(size, self._passes)

    def _pass(self, size: int, workers: ReadAhead) -> Iterator[Batch]:
        """Read all rows in order by workers, with the draws of `quietly`."""
        starts = range(0, self.rows, size)
        parts = [list(range(start, min(start + size, self.rows))) for start in starts]
        found = workers.read(BatchRequest(key, part) for key, part in enumerate(parts))
        for part, data in zip(parts, found, strict=True):
            yield Batch(data, len(part), torch.tensor(part, device="cpu"))

    def _take(self, index: Tensor) -> Any:
        with reading(f"a {type(self._dataset).__name__}, read at rows {listed(index)},"):
            rows = read_rows(self._dataset, self._collate, index.tolist())
        return move(rows, self._device)


class _StepReader:
    """Reads the batches of the steps 0, 1, 2, … by workers. A step out of order is read by this process.

    Args:
        rows: the data set.
        settings: the options of the workers.
    """

    def __init__(self, rows: DatasetRows, settings: WorkerSettings) -> None:
        self._rows, self._settings = rows, settings
        self._workers: ReadAhead | None = None
        self._ahead: Iterator[Any] | None = None
        self._last: tuple[tuple[int, int], Batch] | None = None

    def batch(self, step: int, streams: Streams, role: str) -> Batch:
        """Return the batch of a step."""
        seed = streams.key("rows", role)
        if self._last is not None and self._last[0] == (seed, step):
            return self._last[1]
        follows = self._last is not None and self._last[0] == (seed, step - 1)
        if follows and self._ahead is None:
            self._workers = self._workers or self._rows.read_ahead()
            self._ahead = self._workers.read(self._requests(step, streams, role))
        if follows and self._ahead is not None:
            request = self._rows.request(step, streams, role)
            batch = Batch(next(self._ahead), len(request.numbers), torch.tensor(request.numbers, device="cpu"))
        else:
            self._ahead = None
            batch = self._rows.read_now(step, streams, role)
        self._last = (seed, step), batch
        return batch

    def _requests(self, step: int, streams: Streams, role: str) -> Iterator[BatchRequest]:
        while True:
            yield self._rows.request(step, streams, role)
            step += 1


def _collate(rows: Any) -> Any:
    """Return rows as one batch. Torch's function does not know dataclasses, which are joined field by field."""
    first = rows[0]
    if first is None:
        return None
    if not is_dataclass(first) or isinstance(first, (type, Mapping)):
        return default_collate(rows)
    names, joined = [field.name for field in fields(first)], copy.copy(first)
    for name in names:
        object.__setattr__(joined, name, _collate([getattr(row, name) for row in rows]))
    return joined
