"""What a data set is to the method: an endless, replayable stream of mini-batches S^(t)."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.errors import DataError, PactuneError
from pactune.streams import Streams, forked_rng, seed_forward

__all__ = ["Batch", "Source", "count_rows", "in_type", "map_tensors", "move", "quietly", "reading", "seeded"]


class Batch(NamedTuple):
    """One mini-batch.

    Attributes:
        data: what the data set yields.
        rows: how many rows it has.
        numbers: which rows, where that is known.
        stacked: whether its tensors have a leading axis for many runs at once.
    """

    data: Any
    rows: int
    numbers: Tensor | None = None
    stacked: bool = False


class Source(ABC):
    """Where the mini-batches of one data set come from.

    Attributes:
        replayable: whether a step's mini-batch can be asked for again; if not, they are read once and in order.
        steady: whether every step meets the same mini-batch, the whole data set.
        draws: whether making a row may draw random numbers, as an augmentation does; False for tensors in memory.
    """

    replayable: bool = True
    steady: bool = False
    draws: bool = True

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows, n in the theory."""

    @abstractmethod
    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return S^(t) for t = `step`: a new order in every epoch, a function of seed, role and step.

        A source that can only be read in order keeps one reading position per `reader`.
        """

    @abstractmethod
    def epoch(self) -> Iterator[Batch]:
        """Go once over all rows in their own order, in batches of the training size."""

    def evaluation(self) -> Iterator[Batch]:
        """Go once over all rows, in batches that fit an evaluation without gradients."""
        return self.epoch()

    def again(self) -> Iterator[Batch]:
        """Read rows a second time with other random draws; nothing where reading cannot change a row."""
        return iter(())

    def bare(self) -> Source:
        """Return the same data without what reading them has cached."""
        return self

    def first(self) -> Batch:
        """Return one batch, to try things out on.

        Raises:
            DataError: there is none.
        """
        return next(self.epoch())

    def fingerprint(self) -> str:
        """Return words by which another data set can be told from this one, as far as that is cheap."""
        return type(self).__name__

    def subset(self, rows: Tensor) -> Source:
        """Return a source of some rows only.

        Raises:
            DataError: the source cannot be asked for rows by number.
        """
        raise DataError("rows cannot be chosen from a DataLoader with a sampler of its own; pass its dataset instead")


def in_type(source: Source, dtype: torch.dtype) -> Source:
    """Return the source with its floating-point tensors in another type."""
    return _Cast(source, dtype)


def move(data: Any, device: torch.device) -> Any:
    """Move every tensor of a nested batch to `device`."""
    return map_tensors(data, lambda tensor: tensor.to(device))


def map_tensors(data: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a nested batch."""
    if isinstance(data, Tensor):
        return function(data)
    if isinstance(data, dict):
        return {key: map_tensors(value, function) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        parts = [map_tensors(value, function) for value in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return data


def count_rows(data: Any) -> int:
    """Count the rows of a nested batch by its first tensor."""
    if isinstance(data, Tensor):
        return len(data) if data.ndim else 1
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, (list, tuple)) else ()
    return next((count_rows(part) for part in parts), 1)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn an error of the user's data set into one that names it."""
    try:
        yield
    except (PactuneError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the data set is the user's and may do anything
        reason = str(error).split("\n", 1)[0]
        raise DataError(f"{what} fails with {type(error).__name__}: {reason}; mend the data set") from error


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed what a data set or sampler draws from torch's global generators, and put the generators back.

    A sampler makes its tensors on the default device and draws from that device's generator.
    """
    device = torch.get_default_device()
    with forked_rng(device):
        seed_forward(device, key)
        yield


def quietly(batches: Iterator[Batch], key: int = 0) -> Iterator[Batch]:
    """Read on with the global generator seeded from the key and the position, and put back after each batch."""
    for position in itertools.count():
        with seeded(key + position):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


class _Cast(Source):
    """Another source with its floating-point tensors in another type."""

    def __init__(self, source: Source, dtype: torch.dtype) -> None:
        self._source, self._dtype = source, dtype
        self.replayable, self.steady = source.replayable, source.steady

    @property
    def rows(self) -> int:
        return self._source.rows

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        return self._cast(self._source.batch(step, streams, role, reader))

    def epoch(self) -> Iterator[Batch]:
        return map(self._cast, self._source.epoch())

    def evaluation(self) -> Iterator[Batch]:
        return map(self._cast, self._source.evaluation())

    def _cast(self, batch: Batch) -> Batch:
        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

        return batch._replace(data=map_tensors(batch.data, convert))
