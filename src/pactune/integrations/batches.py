"""Endless validation batches that leave the global random generators unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from pactune.errors import DataError, SettingError
from pactune.problem.data.source import seeded
from pactune.streams import Streams

__all__ = ["EndlessBatches"]

NOTHING = object()


class EndlessBatches:
    """Repeats the batches of a `DataLoader` or a list without end.

    A `DataLoader` draws from the global generator whenever it starts, even without shuffling. This would change the
    run that is monitored. Here the global generators, and those of the loader and its sampler, are seeded while a batch
    is drawn, and restored afterwards. The order of the batches is therefore a function of `seed`, and two numbers
    describe the reading position.

    Args:
        batches: a `DataLoader`, or another collection that can be iterated many times.
        seed: of the order of the batches.

    Example:
        >>> endless = EndlessBatches([1, 2, 3])
        >>> [endless.take() for _ in range(5)]
        [1, 2, 3, 1, 2]
        >>> again = EndlessBatches([1, 2, 3])
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
        """Go back to the first batch."""
        self._reader: Iterator[Any] = iter(())
        self._taken, self._start = 0, 0

    def take(self) -> Any:
        """Return the next batch.

        Raises:
            DataError: the collection is empty.
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
        """Return the reading position: the number of batches taken, and the number taken before the present pass."""
        return {"taken": self._taken, "start": self._start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that `state_dict` returned. The batches of the present pass are read again.

        Raises:
            SettingError: the state is no reading position.
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
    """Seed the global generators and those of a loader, and restore them on exit."""
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
