"""Data sets as endless, replayable streams of mini-batches S^(t)."""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from pactune.errors import DataError, SettingError
from pactune.streams import Streams, forked_rng, seed_forward

__all__ = ["Batch", "Source", "as_source", "in_type", "move"]

FINGERPRINT_ROWS = 1024  # rows by which tensors are told apart
EVALUATION_ROWS = 1024  # rows per forward when a whole data set is evaluated without gradients


class Batch(NamedTuple):
    """One mini-batch: what the data set yields, how many rows, and which rows where that is known."""

    data: Any
    rows: int
    numbers: Tensor | None = None


def move(data: Any, device: torch.device) -> Any:
    """Move every tensor of a nested batch to `device`."""
    return _map(data, lambda tensor: tensor.to(device))


def in_type(source: Source, dtype: torch.dtype) -> Source:
    """Return the source with its floating-point tensors in another type."""
    return _Cast(source, dtype)


def _map(data: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a nested batch."""
    if isinstance(data, Tensor):
        return function(data)
    if isinstance(data, dict):
        return {key: _map(value, function) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        parts = [_map(value, function) for value in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return data


def _rows(data: Any) -> int:
    """Count the rows of a nested batch by its first tensor."""
    if isinstance(data, Tensor):
        return len(data) if data.ndim else 1
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, (list, tuple)) else ()
    return next((_rows(part) for part in parts), 1)


class Source(ABC):
    """Where the mini-batches of one data set come from."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows, n in the theory."""

    @abstractmethod
    def batch(self, step: int, streams: Streams, role: str, lane: str = "") -> Batch:
        """Return S^(t) for t = `step`: a new order in every epoch, a function of seed, role and step.

        A source that can only be read in order keeps one reading position per `lane`.
        """

    @abstractmethod
    def epoch(self) -> Iterator[Batch]:
        """Go once over all rows in their own order, in batches of the training size."""

    def evaluation(self) -> Iterator[Batch]:
        """Go once over all rows, in batches that fit an evaluation without gradients."""
        return self.epoch()

    def first(self) -> Batch:
        """Return one batch, to try things out on.

        Raises:
            DataError: there is none.
        """
        batch = next(self.epoch(), None)
        if batch is None:
            raise DataError("a DataLoader yields no batch: it is empty, or can be read only once")
        return batch

    def fingerprint(self) -> str:
        """Return words by which another data set can be told from this one, as far as that is cheap."""
        return type(self).__name__.lstrip("_").lower()

    def subset(self, rows: Tensor) -> Source:
        """Return a source of some rows only.

        Raises:
            DataError: the source cannot be asked for rows by number.
        """
        raise DataError("rows cannot be chosen from a DataLoader with a sampler of its own; pass its dataset instead")


class _Indexed(Source):
    """A data set whose rows can be asked for by index.

    Attributes:
        draws: whether making a row may draw from torch's global generator, as an augmentation does.
    """

    draws: bool = False

    def __init__(self, rows: int, *, batch_size: int | None, shuffle: bool, drop_last: bool) -> None:
        if rows == 0:
            raise DataError("the data set is empty: it needs at least one row")
        if batch_size is not None and not batch_size >= 1:
            raise SettingError(f"`batch_size` must be at least 1 or None for all rows, got {batch_size}")
        self._rows_total = rows
        self._size = min(batch_size or rows, rows)
        self._shuffle = shuffle
        self._per_epoch = rows // self._size if drop_last else -(-rows // self._size)
        self._full: Batch | None = None
        self._order: tuple[int, Tensor] | None = None

    @property
    def rows(self) -> int:
        return self._rows_total

    @abstractmethod
    def _take(self, index: Tensor) -> Any:
        """Return the rows of `index` as one batch on the model's device."""

    def _make(self, index: Tensor) -> Batch:
        return Batch(self._take(index), len(index), index)

    def _whole(self) -> Batch:
        if self._full is None:
            self._full = self._make(torch.arange(self.rows))
        return self._full

    def _permutation(self, epoch: int, streams: Streams, role: str) -> Tensor:
        if not self._shuffle:
            return torch.arange(self.rows)
        key = streams.key("order", role, epoch)
        if self._order is None or self._order[0] != key:
            self._order = (key, torch.randperm(self.rows, generator=torch.Generator().manual_seed(key)))
        return self._order[1]

    def batch(self, step: int, streams: Streams, role: str, lane: str = "") -> Batch:
        with _seeded(streams.key("rows", role, step)) if self.draws else nullcontext():
            return self._batch(step, streams, role)

    def _batch(self, step: int, streams: Streams, role: str) -> Batch:
        if self._size == self.rows:
            return self._whole()
        epoch, position = divmod(step, self._per_epoch)
        order = self._permutation(epoch, streams, role)
        return self._make(order[position * self._size : (position + 1) * self._size])

    def epoch(self) -> Iterator[Batch]:
        return self._chunks(self._size)

    def evaluation(self) -> Iterator[Batch]:
        return self._chunks(max(self._size, EVALUATION_ROWS))

    def _chunks(self, size: int) -> Iterator[Batch]:
        return _quietly(self._ordered(size)) if self.draws else self._ordered(size)

    def _ordered(self, size: int) -> Iterator[Batch]:
        if size >= self.rows:
            yield self._whole()
            return
        for start in range(0, self.rows, size):
            yield self._make(torch.arange(start, min(start + size, self.rows)))

    def fingerprint(self) -> str:
        return f"{self.rows} rows in batches of {self._size}"

    def subset(self, rows: Tensor) -> Source:
        return _Subset(self, rows)


class _Subset(_Indexed):
    """Some rows of another source, which keep their numbers."""

    def __init__(self, base: _Indexed, rows: Tensor) -> None:
        batch_size = None if base._size == base.rows else base._size
        super().__init__(len(rows), batch_size=batch_size, shuffle=base._shuffle, drop_last=False)
        self._base, self._chosen, self.draws = base, rows, base.draws

    def _take(self, index: Tensor) -> Any:
        return self._base._take(self._chosen[index])

    def _make(self, index: Tensor) -> Batch:
        return Batch(self._take(index), len(index), self._chosen[index])


class _Tensors(_Indexed):
    """Rows of tensors that are all in memory."""

    def __init__(self, tensors: Sequence[Tensor], *, batch_size: int | None) -> None:
        super().__init__(len(tensors[0]), batch_size=batch_size, shuffle=True, drop_last=False)
        self._tensors = tuple(tensors)

    def _take(self, index: Tensor) -> tuple[Tensor, ...]:
        if len(index) == self.rows and bool(torch.equal(index, torch.arange(self.rows))):
            return self._tensors
        return tuple(tensor[index.to(tensor.device)] for tensor in self._tensors)

    def fingerprint(self) -> str:
        """Return the sizes and a checksum of at most `FINGERPRINT_ROWS` rows, spread over all."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in self._tensors:
            sample = tensor.detach()[:: -(-self.rows // FINGERPRINT_ROWS)].cpu().contiguous()
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(sample.reshape(-1).view(torch.uint8).numpy().data)
        return f"{super().fingerprint()}, checksum {digest.hexdigest()}"


class _Rows(_Indexed):
    """Rows of a map-style `Dataset`."""

    draws = True

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        device: torch.device,
        batch_size: int | None,
        collate: Any = default_collate,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        super().__init__(_length(dataset), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        self._dataset, self._device, self._collate = dataset, device, collate

    def _take(self, index: Tensor) -> Any:
        return move(self._collate([self._dataset[int(i)] for i in index]), self._device)


class _Loader(Source):
    """A `DataLoader` with a sampler of its own: its batches are taken in the order in which it gives them.

    What the sampler draws from torch's global generator is a function of the seed; a generator of its own goes on as
    it likes.
    """

    def __init__(self, loader: DataLoader[Any], *, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self._lanes: dict[str, tuple[int, Iterator[Batch]]] = {}
        self._count: int | None = None

    @property
    def rows(self) -> int:
        if self._count is None:
            self._count = sum(batch.rows for batch in self.epoch())
        return self._count

    def batch(self, step: int, streams: Streams, role: str, lane: str = "") -> Batch:
        position, stream = self._lanes.get(lane, (0, self._forever(streams, role)))
        if step == 0:
            position, stream = 0, self._forever(streams, role)
        if step < position:
            raise DataError(
                f"the {role} DataLoader has a sampler of its own, so step {step} cannot be replayed after step "
                f"{position - 1}; pass its dataset with `batch_size=` instead"
            )
        for _ in range(step - position):
            next(stream)
        self._lanes[lane] = (step + 1, stream)
        return next(stream)

    def epoch(self) -> Iterator[Batch]:
        return _quietly(self._once())

    def _once(self) -> Iterator[Batch]:
        for data in self._loader:
            moved = move(data, self._device)
            yield Batch(moved, _rows(moved))

    def _forever(self, streams: Streams, role: str) -> Iterator[Batch]:
        for epoch in itertools.count():
            empty = True
            for batch in _quietly(self._once(), streams.key("loader", role, epoch)):
                empty = False
                yield batch
            if empty:
                raise DataError(f"the {role} DataLoader yields no batch: it is empty, or can be read only once")


class _Cast(Source):
    """Another source with its floating-point tensors in another type."""

    def __init__(self, source: Source, dtype: torch.dtype) -> None:
        self._source, self._dtype = source, dtype

    @property
    def rows(self) -> int:
        return self._source.rows

    def batch(self, step: int, streams: Streams, role: str, lane: str = "") -> Batch:
        return self._cast(self._source.batch(step, streams, role, lane))

    def epoch(self) -> Iterator[Batch]:
        return map(self._cast, self._source.epoch())

    def evaluation(self) -> Iterator[Batch]:
        return map(self._cast, self._source.evaluation())

    def _cast(self, batch: Batch) -> Batch:
        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

        return batch._replace(data=_map(batch.data, convert))


@contextmanager
def _seeded(key: int) -> Iterator[None]:
    """Seed what a data set or sampler draws from torch's global generator, and put the generator back."""
    cpu = torch.device("cpu")
    with forked_rng(cpu):
        seed_forward(cpu, key)
        yield


def _quietly(batches: Iterator[Batch], key: int = 0) -> Iterator[Batch]:
    """Read on with the global generator seeded from the key and the position, and put back after each batch."""
    for position in itertools.count():
        with _seeded(key + position):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _length(dataset: Any) -> int:
    if not hasattr(dataset, "__len__"):
        raise DataError(f"a Dataset must know its length, {type(dataset).__name__} does not; wrap it in a DataLoader")
    return len(dataset)


def _check_tensors(tensors: Sequence[Tensor], role: str, device: torch.device) -> None:
    lengths = [len(tensor) if tensor.ndim else -1 for tensor in tensors]
    if len(set(lengths)) != 1 or lengths[0] < 0:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise DataError(f"`{role}` tensors must have the same number of rows, got shapes {shapes}")
    if lengths[0] == 0:
        raise DataError(f"`{role}` is empty: it needs at least one row")
    for tensor in tensors:
        if tensor.device != device:
            raise DataError(
                f"`{role}` is on {tensor.device} and the model on {device}; move one of them with `.to(...)` first"
            )


def _from_loader(loader: DataLoader[Any], device: torch.device) -> Source:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None or not _standard(loader.sampler):
        return _Loader(loader, device=device)
    return _Rows(
        loader.dataset,
        device=device,
        batch_size=loader.batch_size,
        collate=loader.collate_fn,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
    )


def _standard(sampler: object) -> bool:
    """Whether a sampler visits every row once, in order or at random, so that its order can be replayed by number."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _kind(data: object) -> str:
    name = type(data).__name__
    if isinstance(data, (tuple, list)):
        return f"{name} of ({', '.join(type(part).__name__ for part in data)})"
    return name


def as_source(data: Any, *, role: str, device: torch.device, batch_size: int | None = None) -> Source:
    """Turn tensors, a `Dataset` or a `DataLoader` into a stream of mini-batches.

    Args:
        data: a tensor, a tuple of tensors with equal first dimension, a `Dataset` or a `DataLoader`.
        role: the name used in messages, "train", "valid" or "test".
        device: where the model is; tensors must be there, batches of a `Dataset` or `DataLoader` are moved.
        batch_size: rows per mini-batch; None takes all rows. A `DataLoader` brings its own.

    Raises:
        DataError: for unknown, empty or ill-fitting data.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, Tensor):
        data = (data,)
    if isinstance(data, (tuple, list)) and data and all(isinstance(part, Tensor) for part in data):
        _check_tensors(data, role, device)
        return _Tensors(data, batch_size=batch_size)
    if isinstance(data, DataLoader):
        if batch_size is not None:
            raise SettingError(f"`{role}` is a DataLoader and brings its own batch size; leave `batch_size` out")
        return _from_loader(data, device)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        if _length(data) == 0:
            raise DataError(f"`{role}` is empty: it needs at least one row")
        return _Rows(data, device=device, batch_size=batch_size)
    raise DataError(
        f"`{role}` must be a tensor, a tuple of tensors, a Dataset or a DataLoader, got {_kind(data)}; "
        "turn arrays into tensors with torch.as_tensor"
    )
