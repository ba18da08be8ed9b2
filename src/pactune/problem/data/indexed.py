"""Data sets whose rows are read by number: tensors, and map-style data sets."""

from __future__ import annotations

import copy
import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from pactune.errors import DataError
from pactune.nested import map_tensors, tensors_in
from pactune.problem.data.source import Batch, Source, quietly, reading, seeded
from pactune.problem.data.take_rows import take_rows
from pactune.problem.data.taken import TakenRows, take_once
from pactune.streams import Streams

__all__ = ["Indexed", "TensorRows", "length_of", "listed"]

_WHOLE: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
FINGERPRINT_ROWS = 1024  # rows of a tensor that go into its checksum
REREAD_ROWS = 256  # rows that are read twice to find out if reading changes them
MOST_ORDERS = 2  # permutations that are kept: workers read the next epoch while the present one ends
EVALUATION_ROWS = 1024  # rows per forward when a whole data set is evaluated without gradients


def whole(rows: int) -> Tensor:
    """Return the numbers of all rows. Data sets of equal size share the tensor, so nobody may change it."""
    found = _WHOLE.get(rows)
    if found is None:
        found = _WHOLE[rows] = torch.arange(rows, device="cpu")
    return found


class Indexed(Source):
    """A data set whose rows are read by number."""

    def __init__(self, rows: int, *, batch_size: int | None, shuffle: bool, drop_last: bool) -> None:
        if rows == 0:
            raise DataError("the data set is empty: it needs at least one row")
        self._rows_total = rows
        self._shuffle, self._drop_last = shuffle, drop_last
        self._take_size(batch_size)
        self._full: Batch | None = None
        self._orders: dict[int, Tensor] = {}

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._rows_total

    @abstractmethod
    def _take(self, index: Tensor) -> Any:
        """Return the rows of `index` as one batch on the model's device."""

    def _make(self, index: Tensor) -> Batch:
        return Batch(self._take(index), index.shape[0], index)

    def _whole(self) -> Batch:
        """Return all rows as one batch; it is cached."""
        if self._full is None:
            with seeded(0) if self.draws else nullcontext():
                self._full = self._make(whole(self.rows))
        return self._full

    def _permutation(self, epoch: int, streams: Streams, role: str) -> Tensor:
        if not self._shuffle:
            return torch.arange(self.rows, device="cpu")
        key = streams.key("order", role, epoch)
        if key not in self._orders:
            generator = torch.Generator("cpu").manual_seed(key)
            while len(self._orders) >= MOST_ORDERS:
                del self._orders[next(iter(self._orders))]
            self._orders[key] = torch.randperm(self.rows, generator=generator, device="cpu")
        return self._orders[key]

    def _step_rows(self, step: int, size: int, streams: Streams, role: str) -> Tensor:
        """Return the rows of a step of `size` rows, by their places in this source."""
        epoch, position = divmod(step, self.rows // size if self._drop_last else -(-self.rows // size))
        return self._permutation(epoch, streams, role)[position * size : (position + 1) * size]

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return all rows, or the next part of the epoch's permutation."""
        return self._part(step, self._size, streams, role)

    def risk_batches(self, round_index: int, streams: Streams, reader: str = "") -> Iterable[Batch]:
        """Return the next part of a permutation of its own, or all rows in parts of the mini-batch size."""
        if self.risk_size is None:
            return super().risk_batches(round_index, streams, reader)
        return [self._part(round_index, self.risk_size, streams, "risk")]

    def with_risk_size(self, size: int | None) -> Source:
        """Return the same rows with another `risk_size`."""
        twin = copy.copy(self)
        twin.risk_size = size
        return twin

    def with_mini_batches(self, size: int) -> Source:
        """Return the same rows in mini-batches of one size; each epoch leaves out the rows of a smaller last one."""
        twin = copy.copy(self)
        twin._drop_last = True
        twin._take_size(size)
        return twin

    def _take_size(self, batch_size: int | None) -> None:
        self._size = min(batch_size or self.rows, self.rows)
        self.steady = self._size == self.rows
        self.risk_size = None if self.steady else self._size

    def _part(self, step: int, size: int, streams: Streams, role: str) -> Batch:
        """Return `size` rows: part number `step` of a permutation that changes from epoch to epoch."""
        if size >= self.rows:
            return self._whole()
        with seeded(streams.key("rows", role, step)) if self.draws else nullcontext():
            return self._make(self._step_rows(step, size, streams, role))

    def first(self) -> Batch:
        """Return the first batch; it is cached if it has all rows."""
        return self._whole() if self.steady else super().first()

    def epoch(self) -> Iterator[Batch]:
        """Iterate over all rows in batches of the training size."""
        return self._chunks(self._size)

    def evaluation(self) -> Iterator[Batch]:
        """Iterate over all rows in larger batches."""
        return self._chunks(max(self._size, EVALUATION_ROWS))

    def _chunks(self, size: int) -> Iterator[Batch]:
        return quietly(self._ordered(size)) if self.draws else self._ordered(size)

    def _ordered(self, size: int) -> Iterator[Batch]:
        if size >= self.rows:
            yield self._whole()
            return
        for start in range(0, self.rows, size):
            yield self._make(torch.arange(start, min(start + size, self.rows), device="cpu"))

    def reread(self) -> Iterator[Batch]:
        """Read some rows a second time, the last ones first, so that the random draws of each row differ."""
        if not self.draws:
            return iter(())
        chosen = torch.linspace(self.rows - 1, 0, min(self.rows, REREAD_ROWS), device="cpu").long()
        return self.subset(chosen).epoch()

    def uncached(self) -> Source:
        """Return the same rows without the cached batch."""
        twin = copy.copy(self)
        twin._full, twin._orders = None, {}
        return twin

    def fingerprint(self) -> str:
        """Return the number of rows, the batch sizes and the order in words."""
        order = "" if self._shuffle else ", in order"
        words = f"{self.rows} rows in batches of {self._size}{order}{', whole ones only' if self._drop_last else ''}"
        usual = None if self.steady else self._size
        return words if self.risk_size == usual else f"{words}, risk on {self.risk_size or 'all'} rows"

    def subset(self, rows: Tensor) -> Source:
        """Return some of the rows; they keep their numbers."""
        return _Subset(self, rows)


class _Subset(Indexed):
    """Some rows of another source; they keep their numbers."""

    def __init__(self, base: Indexed, rows: Tensor) -> None:
        batch_size = None if base._size == base.rows else base._size
        super().__init__(len(rows), batch_size=batch_size, shuffle=base._shuffle, drop_last=base._drop_last)
        self._base, self._chosen, self.draws, self.risk_size = base, rows, base.draws, base.risk_size
        self._taken: TakenRows | None = None

    def uncached(self) -> Source:
        return _Subset(cast(Indexed, self._base.uncached()), self._chosen)

    def subset(self, rows: Tensor) -> Source:
        return _Subset(self._base, self._chosen[rows])  # of the base, whose numbers the rows keep

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self._chosen.numpy().tobytes(), digest_size=8).hexdigest()
        return f"{super().fingerprint()}, rows {digest} of {self._base.fingerprint()}"

    def _whole(self) -> Batch:
        if not isinstance(self._base, TensorRows):
            return super()._whole()
        if self._taken is None:
            self._taken = take_once(self._base.data, self._chosen, lambda: self._base._take(self._chosen))
            self._full = Batch(self._taken.data, self.rows, self._chosen)
        assert self._full is not None
        return self._full

    def _take(self, index: Tensor) -> Any:
        return self._base._take(self._chosen[index])

    def _make(self, index: Tensor) -> Batch:
        return Batch(self._take(index), len(index), self._chosen[index])


class TensorRows(Indexed):
    """Rows of tensors that are all in memory, in a tuple, a dict or any other structure that `nested` knows.

    Args:
        data: all rows.
        tensors: the tensors in `data`.
        batch_size: rows per mini-batch; None takes all rows.

    Attributes:
        data: all rows.
    """

    draws = False

    def __init__(self, data: Any, tensors: Sequence[Tensor], *, batch_size: int | None) -> None:
        self.data = data
        super().__init__(tensors[0].shape[0], batch_size=batch_size, shuffle=True, drop_last=False)

    def with_tensors(self, data: Any) -> TensorRows:
        """Return other tensors of the same shapes as a data set with the same mini-batches."""
        twin = object.__new__(TensorRows)
        twin.__dict__.update(self.__dict__)
        twin.data, twin._full, twin._orders = data, None, {}
        return twin

    def _whole(self) -> Batch:
        if self._full is None:
            self._full = Batch(self.data, self.rows, whole(self.rows))
        return self._full

    def _take(self, index: Tensor) -> Any:
        every = whole(self.rows)
        if index is every or (index.shape == every.shape and torch.equal(index, every)):
            return self.data
        return map_tensors(self.data, lambda tensor: take_rows(tensor, index))

    def fingerprint(self) -> str:
        """Return the sizes and a checksum of at most `FINGERPRINT_ROWS` rows, spread over all."""
        digest = hashlib.blake2b(digest_size=8)
        spread = torch.arange(0, self.rows, -(-self.rows // FINGERPRINT_ROWS), device="cpu")
        for tensor in tensors_in(self.data):
            sample = take_rows(tensor.detach(), spread).to_dense().cpu().contiguous()
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(sample.reshape(-1).view(torch.uint8).numpy().data)
        return f"{super().fingerprint()}, checksum {digest.hexdigest()}"


def listed(index: Tensor) -> str:
    """Return row numbers as text; at most the first four.

    >>> listed(torch.arange(9))
    '0, 1, 2, 3, …'
    """
    return ", ".join([*map(str, index[:4].tolist()), *(["…"] if len(index) > 4 else [])])


def length_of(dataset: Any) -> int:
    """Return the number of rows of a data set."""
    if not hasattr(dataset, "__len__"):
        raise DataError(f"a Dataset must know its length, {type(dataset).__name__} does not; wrap it in a DataLoader")
    with reading(f"the length of a {type(dataset).__name__}"):
        return len(dataset)
