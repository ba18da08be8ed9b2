"""A `DataLoader` with a custom sampler or over a stream, whose batches can only be read in its own order."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from pactune.checks import check_count
from pactune.errors import DataError, SettingError, warn_user
from pactune.nested import tensors_in
from pactune.problem.data.prefetch import on_device
from pactune.problem.data.source import Batch, Source, count_rows, quietly, reading
from pactune.problem.data.workers import keep_until_freed
from pactune.streams import Streams

__all__ = ["LoaderBatches", "Stream"]

STREAM_BATCHES = 100  # batches that stand for a stream without a length, unless `Stream` states another number


@dataclass(frozen=True)
class Stream:
    """A `DataLoader` that may never end, and the number of its batches that stand for all rows.

    Training reads the loader as long as it likes, and the risk at θ_T reads its next batch. Every evaluation reads its
    first `batches` batches.

    Args:
        loader: a `DataLoader`.
        batches: the number of batches that are read where a sample is read as a whole.

    Raises:
        DataError: `loader` is no `DataLoader`.
        SettingError: `batches` is no number ≥ 1.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> Stream(DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2), batches=3).batches
        3
    """

    loader: DataLoader[Any]
    batches: int

    def __post_init__(self) -> None:
        check_count("batches", self.batches, words="at least 1")
        if not isinstance(self.loader, DataLoader):
            raise DataError(f"`loader` must be a DataLoader, got {type(self.loader).__name__}")


class LoaderBatches(Source):
    """A `DataLoader` with a custom sampler, or a stream; its batches are read in its own order.

    Draws from torch's global generators are a function of the seed. A generator that the sampler itself holds is not
    seeded.

    Args:
        loader: the loader.
        role: the name used in messages.
        device: the device to which batches are moved.
        batches: the most batches of a pass over all rows; None reads a loader with a length to its end.
    """

    replayable = False

    def __init__(self, loader: DataLoader[Any], *, role: str, device: torch.device, batches: int | None = None) -> None:
        self._loader, self._role, self._device = loader, role, device
        self._stated = batches
        self._limit = batches if batches is not None or _has_length(loader) else STREAM_BATCHES
        self._positions: dict[str, tuple[int, Iterator[Batch]]] = {}
        self._count: int | None = None
        self._risk_on_all = False
        self._first: Batch | None = None
        self._evaluated = _own_workers(loader, persistent=loader.persistent_workers)
        keep_until_freed(self._evaluated, self)

    @property
    def size(self) -> int | None:
        """The number of rows; None for a stream of which no pass has reached the end."""
        return self.rows if self._limit is None else self._count

    @property
    def rows(self) -> int:
        """The number of rows; the first access reads the loader to count them, as far as an evaluation reads it.

        Raises:
            DataError: the loader goes on beyond that.
        """
        if self._count is None:
            for _ in self.epoch():
                pass
        if self._count is None:
            raise DataError(
                f"`{self._role}` is a stream that goes on after {self._limit} batches, so the number of its rows is "
                "unknown, and this setting needs it; give its dataset a `__len__`, or pass a data set with a length"
            )
        return self._count

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Read on to the step, from the position of this reader."""
        position, stream = self._positions.get(reader, (0, None))
        if step == 0 or stream is None:
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

    def first(self) -> Batch:
        """Return the first batch; it is cached, because a pass may start worker processes."""
        if self._first is None:
            self._first = next(self.epoch())
        return self._first

    def epoch(self) -> Iterator[Batch]:
        """Read the loader once, or the batches that stand for it."""
        return self._counted(quietly(self._once(self._evaluated)))

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
        twin = LoaderBatches(self._loader, role=self._role, device=self._device, batches=self._stated)
        twin._risk_on_all = self._risk_on_all
        return twin

    def reread(self) -> Iterator[Batch]:
        """Read the loader once more, with other random draws."""
        return itertools.islice(quietly(self._once(self._evaluated), key=1), self._limit)

    def fingerprint(self) -> str:
        """Return the kind; for a stream also a checksum of its first batch, which a resumed run must find again."""
        if self._limit is None:
            return super().fingerprint()
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors_in(self.first().data):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().to_dense().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return f"a stream of which {self._limit} batches are evaluated, first batch {digest.hexdigest()}"

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches up to the limit. Note the number of rows if the end is reached."""
        rows = 0
        for number, batch in enumerate(batches):
            if number == self._limit:
                self._warn()
                return
            rows += batch.rows
            yield batch
            if number + 1 == self._stated:  # nobody asks if there is more
                return
        self._count = rows

    def _warn(self) -> None:
        if self._stated is None:
            self._stated = self._limit
            warn_user(
                f"`{self._role}` is a DataLoader without a length, so its first {self._limit} batches stand for all "
                "rows in evaluations; state their number with pt.Stream(loader, batches=…)"
            )

    def _once(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        empty = True
        with reading(f"the DataLoader of `{self._role}`"):
            for data in on_device(loader, self._device):
                empty = False
                yield Batch(data, count_rows(data))
        if empty:
            raise DataError(
                f"`{self._role}` is a DataLoader that yields no batch: it is empty, or can be read only once; pass a "
                "dataset whose `__iter__` starts anew each time"
            )

    def _forever(self, streams: Streams, role: str) -> Iterator[Batch]:
        loader = _own_workers(self._loader, persistent=True)  # one set of workers for all passes of this reader
        keys = (streams.key("loader", role, epoch) for epoch in itertools.count())
        passes = (quietly(self._once(loader), key) for key in keys)
        keep_until_freed(loader, passes)
        return itertools.chain.from_iterable(passes)


def _has_length(loader: DataLoader[Any]) -> bool:
    """True if a loader knows its length. A stream does not, nor does a sampler that draws without end."""
    try:
        return len(loader) >= 0
    except TypeError:
        return False


def _own_workers(loader: DataLoader[Any], *, persistent: bool) -> DataLoader[Any]:
    """Return the same loader with workers of its own, which another pass over the user's loader does not disturb.

    A loader with persistent workers has a single iterator, which every pass starts anew.
    """
    if loader.num_workers == 0:
        return loader
    twin = copy.copy(loader)
    vars(twin).update(_iterator=None, persistent_workers=persistent)
    return twin
