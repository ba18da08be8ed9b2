"""The times of functions, for engines that measure whether a recording pays."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

__all__ = ["least_seconds"]

TIMED_RUNS = 4


def least_seconds(*runs: Callable[[], object]) -> list[float]:
    """Return the time of each function: the least of a few runs, since other processes disturb some of them.

    The functions run in turn, so that a device that changes its clock favours none of them.
    """
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(TIMED_RUNS):
        for run, own in zip(runs, taken, strict=True):
            _wait()
            start = perf_counter()
            run()
            _wait()
            own.append(perf_counter() - start)
    return [min(own) for own in taken]


def _wait() -> None:
    """Wait until everything on the device is done."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
