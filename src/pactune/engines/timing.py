"""The time of a function, for engines that measure whether a recording pays."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

__all__ = ["least_seconds"]

TIMED_RUNS = 4


def least_seconds(run: Callable[[], object]) -> float:
    """Return the time of a function: the least of a few runs, since other processes disturb some of them."""
    taken = []
    for _ in range(TIMED_RUNS):
        _wait()
        start = perf_counter()
        run()
        _wait()
        taken.append(perf_counter() - start)
    return min(taken)


def _wait() -> None:
    """Wait until everything on the device is done."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
