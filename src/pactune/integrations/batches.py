"""Validation batches without end, drawn without a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from pactune.errors import DataError
from pactune.streams import Streams

__all__ = ["Endless"]


class Endless:
    """The batches of a `DataLoader` or another collection, over and over.

    A `DataLoader` draws from the global generator whenever it starts, even without shuffling, which would change the
    run that is watched. Here it draws from a stream of its own.

    Args:
        batches: anything that can be iterated again and again.
        seed: of the loader's order.

    Example:
        >>> endless = Endless([1, 2])
        >>> [endless.take() for _ in range(5)]
        [1, 2, 1, 2, 1]
    """

    def __init__(self, batches: Iterable[Any], *, seed: int = 0) -> None:
        if not isinstance(batches, Iterable) or isinstance(batches, (Iterator, str)):
            raise DataError(f"`valid` must be a DataLoader or a list of batches, got {type(batches).__name__}")
        self._batches, self._streams = batches, Streams(seed)
        self._reader: Iterator[Any] = iter(())
        self._taken = 0

    def take(self) -> Any:
        """Return the next batch.

        Raises:
            DataError: there is none.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._streams.key("valid batch", self._taken))
            self._taken += 1
            try:
                return next(self._reader)
            except StopIteration:
                self._reader = iter(self._batches)
            for batch in self._reader:
                return batch
        raise DataError("`valid` yields no batch: it is empty")
