"""`Source`: a data set as an endless, replayable stream of mini-batches S^(t)."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.errors import DataError, PactuneError
from pactune.nested import tensors_in
from pactune.streams import Streams, forked_rng, seed_forward

__all__ = ["Batch", "BatchesAnew", "Source", "count_rows", "quietly", "reading", "seeded"]


class Batch(NamedTuple):
    """One mini-batch.

    Attributes:
        data: the tensors, as the data set yields them.
        rows: the number of rows.
        numbers: the numbers of the rows in the data set; None if they are unknown.
        stacked: True if the tensors have a leading axis for many runs.
        shared: the places, among the tensors of `data` and `numbers`, of those that have no such axis: all runs share
            them.
    """

    data: Any
    rows: int
    numbers: Tensor | None = None
    stacked: bool = False
    shared: frozenset[int] = frozenset()


@dataclass(frozen=True)
class BatchesAnew(Iterable[Batch]):
    """Mini-batches that every iteration reads anew, so that they are not kept in memory."""

    read: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.read()


class Source(ABC):
    """A data set that yields mini-batches.

    Attributes:
        replayable: True if the mini-batch of a step can be read again; if not, batches are read once and in order.
        steady: True if every step gets the same mini-batch, the whole data set.
        draws: True if reading a row may draw random numbers, as an augmentation does; False for tensors in memory.
        risk_size: the rows of the mini-batch on which the risk at θ_T is computed; None computes it on all rows.
    """

    replayable: bool = True
    steady: bool = False
    draws: bool = True
    risk_size: int | None = None

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows, n in the theory."""

    @property
    def size(self) -> int | None:
        """The number of rows; None if it is unknown, as for a stream. Reads nothing."""
        return self.rows

    def count(self, *, needed: bool) -> int:
        """Return the number of rows; 0 if it is unknown and not needed."""
        return self.rows if self.size is not None or needed else 0

    @abstractmethod
    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return S^(t) for t = `step`. The order changes in every epoch and is a function of seed, role and step.

        A source that can only be read in order keeps one reading position per `reader`.
        """

    @abstractmethod
    def epoch(self) -> Iterator[Batch]:
        """Iterate once over all rows in their stored order, in batches of the training size."""

    def risk_batches(self, round_index: int, streams: Streams, reader: str = "") -> Iterable[Batch]:
        """Return the rows on which the risk at θ_T of an outer step is computed. They can be iterated several times.

        They are all rows, or a mini-batch that is a function of the seed and the outer step.
        """
        return BatchesAnew(self.epoch)

    def with_risk_size(self, size: int | None) -> Source:
        """Return the same data with another `risk_size`."""
        return self

    def with_mini_batches(self, size: int) -> Source:
        """Return the same data in training mini-batches of `size` rows, if it does not bring its own."""
        return self

    def evaluation(self) -> Iterator[Batch]:
        """Iterate once over all rows, in batches that fit an evaluation without gradients."""
        return self.epoch()

    def reread(self) -> Iterator[Batch]:
        """Read rows a second time with other random draws; yield nothing if reading cannot change a row."""
        return iter(())

    def uncached(self) -> Source:
        """Return the same data without cached batches."""
        return self

    def first(self) -> Batch:
        """Return the first batch, for checks before training.

        Raises:
            DataError: the data set is empty.
        """
        return next(self.epoch())

    def fingerprint(self) -> str:
        """Return a text that differs between data sets, as far as that is cheap to compute."""
        return type(self).__name__

    def subset(self, rows: Tensor) -> Source:
        """Return a source of some rows only.

        Raises:
            DataError: the rows of the source cannot be read by number.
        """
        raise DataError("rows cannot be chosen from a DataLoader with a sampler of its own; pass its dataset instead")


def count_rows(data: Any) -> int:
    """Count the rows of a nested batch by its first tensor."""
    first = next(iter(tensors_in(data)), None)
    return 1 if first is None or first.ndim == 0 else len(first)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn an error of the user's data set into a `DataError` that names the data set."""
    try:
        yield
    except (PactuneError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the data set is the user's and may do anything
        reason = str(error).split("\n", 1)[0]
        raise DataError(f"{what} fails with {type(error).__name__}: {reason}; mend the data set") from error


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed torch's global generators, from which data sets and samplers draw, and restore them on exit.

    A sampler makes its tensors on the default device and draws from that device's generator.
    """
    device = torch.get_default_device()
    with forked_rng(device):
        seed_forward(device, key)
        yield


def quietly(batches: Iterator[Batch], key: int = 0) -> Iterator[Batch]:
    """Yield the batches; seed the global generators from the key and the position, and restore them after each."""
    for position in itertools.count():
        with seeded(key + position):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
