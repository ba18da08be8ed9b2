"""Worker processes that read the rows of a data set ahead, with the numbers that the main process would read."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from pactune.problem.data.prefetch import on_device
from pactune.problem.data.source import reading, seeded

__all__ = ["BatchRequest", "ReadAhead", "WorkerSettings", "keep_until_freed", "read_rows"]


class BatchRequest(NamedTuple):
    """The rows of one batch, and the seed of torch's generators while they are read."""

    key: int
    numbers: list[int]


def read_rows(dataset: Any, collate: Callable[[Any], Any], numbers: list[int]) -> Any:
    """Return some rows as one batch; they are read all at once if the data set can do so, as in a `DataLoader`."""
    several: Any = getattr(dataset, "__getitems__", None)
    return collate(several(numbers) if callable(several) else [dataset[number] for number in numbers])


@dataclass(frozen=True)
class WorkerSettings:
    """The options of a `DataLoader` that decide how its workers read.

    Attributes:
        options: arguments of `DataLoader`.
    """

    options: dict[str, Any]

    @classmethod
    def of(cls, loader: DataLoader[Any], device: torch.device) -> WorkerSettings | None:
        """Return the settings of a loader; None if the main process reads."""
        if loader.num_workers == 0:
            return None
        names = ("num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
        options = {name: getattr(loader, name) for name in names}
        return cls({**options, "pin_memory": loader.pin_memory and device.type == "cuda"})


class ReadAhead:
    """Reads batches in worker processes, which live until this object is freed.

    Args:
        dataset: the data set.
        collate: joins rows into a batch.
        settings: the options of the workers.
        device: the device to which batches are moved.

    Attributes:
        busy: True while a pass is under way.
    """

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[Any], Any], settings: WorkerSettings, device: torch.device
    ) -> None:
        self._requests: Iterator[BatchRequest] = iter(())
        self._device = device
        rows = _SeededRows(dataset, collate)
        self._loader = DataLoader(
            rows,
            batch_size=None,
            sampler=_Requests(weakref.ref(self)),
            collate_fn=_unchanged,
            persistent_workers=True,
            **settings.options,
        )
        keep_until_freed(self._loader, self)
        self.busy = False
        self._what = f"a {type(dataset).__name__}, read by workers,"

    def read(self, requests: Iterable[BatchRequest]) -> Iterator[Any]:
        """Yield the batches of the requests in order. Only one pass can be under way.

        The workers' own seeds come from the key of the first request. By default a `DataLoader` draws them from the
        global generator.
        """
        requests = iter(requests)
        first = next(requests)
        self._loader.generator = torch.Generator(torch.get_default_device()).manual_seed(first.key)
        self._requests, self.busy = itertools.chain([first], requests), True
        try:
            with reading(self._what):
                yield from on_device(self._loader, self._device)
        finally:
            self.busy = False


@dataclass
class _SeededRows(Dataset[Any]):
    """A data set whose items are whole batches. Each is read with torch's generators seeded for it."""

    dataset: Any
    collate: Callable[[Any], Any]

    def __getitem__(self, request: BatchRequest) -> Any:
        with seeded(request.key):
            return read_rows(self.dataset, self.collate, request.numbers)


@dataclass(eq=False)
class _Requests(Sampler[BatchRequest]):
    """The batches that the workers are to read, in order. Holds their reader weakly, so that it can be freed."""

    reader: weakref.ref[ReadAhead]

    def __iter__(self) -> Iterator[BatchRequest]:
        while (reader := self.reader()) is not None:
            request = next(reader._requests, None)
            del reader
            if request is None:
                return
            yield request


def keep_until_freed(loader: DataLoader[Any], owner: object) -> None:
    """Keep a loader until its owner is freed, if it has workers.

    The garbage collector closes the queues of an iterator before the iterator itself. Then no worker hears that it
    should stop, and the iterator waits 5 s for each. So the collector must not find the loader together with its owner.
    """
    if loader.num_workers > 0:
        weakref.finalize(owner, _unchanged, loader)


def _unchanged(data: Any) -> Any:
    return data
