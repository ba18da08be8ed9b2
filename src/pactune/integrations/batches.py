"""Validation batches without end, drawn without a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from pactune.errors import DataError, SettingError
from pactune.problem.data.source import seeded
from pactune.streams import Streams

__all__ = ["Endless"]

NOTHING = object()


class Endless:
    """The batches of a `DataLoader` or another collection, over and over.

    A `DataLoader` draws from the global generator whenever it starts, even without shuffling, which would change the
    run that is watched. Here it draws from a stream of its own, and so does a generator that the loader or its sampler
    holds. The order is therefore a function of `seed`, and the reading position is two numbers.

    Args:
        batches: anything that can be iterated again and again.
        seed: of the loader's order.

    Example:
        >>> endless = Endless([1, 2, 3])
        >>> [endless.take() for _ in range(5)]
        [1, 2, 3, 1, 2]
        >>> again = Endless([1, 2, 3])
        >>> again.load_state_dict(endless.state_dict())
        >>> again.take()
        3
    """

    def __init__(self, batches: Iterable[Any], *, seed: int = 0) -> None:
        if not isinstance(batches, Iterable) or isinstance(batches, (Iterator, str)):
            raise DataError(f"`valid` must be a DataLoader or a list of batches, got {type(batches).__name__}")
        self._batches, self._streams = batches, Streams(seed)
        self.restart()

    def restart(self) -> None:
        """Go back to the beginning."""
        self._reader: Iterator[Any] = iter(())
        self._taken, self._start = 0, 0

    def take(self) -> Any:
        """Return the next batch.

        Raises:
            DataError: there is none.
        """
        key = self._streams.key("valid batch", self._taken)
        with _seeded(self._batches, key):
            batch = next(self._reader, NOTHING)
        if batch is NOTHING:
            self._start = self._taken
            with _seeded(self._batches, key):
                self._reader = iter(self._batches)
                batch = next(self._reader, NOTHING)
        if batch is NOTHING:
            raise DataError("`valid` yields no batch: it is empty")
        self._taken += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """Return the reading position: how many batches were taken, and how many before the present pass."""
        return {"taken": self._taken, "start": self._start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; the batches of the present pass are read again.

        Raises:
            SettingError: the state is not that of a reader.
        """
        taken, start = (state.get(name) if isinstance(state, Mapping) else None for name in ("taken", "start"))
        if not (isinstance(taken, int) and isinstance(start, int) and 0 <= start <= taken):
            raise SettingError(f"`state` must be a reading position with 0 ≤ start ≤ taken, got {state!r}")
        self.restart()
        self._taken = start
        while self._taken < taken:
            self.take()


@contextmanager
def _seeded(batches: object, key: int) -> Iterator[None]:
    """Seed the global generators and those that a loader holds, and put them back."""
    sampler, batch_sampler = getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)
    holders = (batches, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    held = {id(g): g for one in holders if isinstance(g := getattr(one, "generator", None), torch.Generator)}
    before = {name: generator.get_state() for name, generator in held.items()}
    try:
        for generator in held.values():
            generator.manual_seed(key)
        with seeded(key):
            yield
    finally:
        for name, generator in held.items():
            generator.set_state(before[name])
