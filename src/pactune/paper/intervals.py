"""Means with 95 % intervals, as plain numbers for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from pactune.extras import require

__all__ = ["Interval", "bootstrap_interval", "bootstrap_intervals", "mean_interval", "mean_intervals", "share_interval"]

_COVERAGE = 0.95


class Interval(TypedDict):
    """A mean, or a share, and its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    """Return the mean with Student's 95 % interval; the interval of a single value is that value."""
    array = np.asarray(values, dtype=float)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean=mean, low=mean, high=mean)
    stats = require("scipy.stats")
    half = float(stats.t.ppf(0.5 + _COVERAGE / 2, len(array) - 1)) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def mean_intervals(table: Sequence[Sequence[float]] | NDArray[np.float64]) -> list[Interval]:
    """Return the interval of every column of a table whose rows are repetitions."""
    return [mean_interval(column) for column in np.asarray(table, dtype=float).T]


def share_interval(successes: int, trials: int) -> Interval:
    """Return the share of successes with Wilson's 95 % interval.

    Example:
        >>> {name: round(value, 3) for name, value in share_interval(18, 20).items()}
        {'mean': 0.9, 'low': 0.699, 'high': 0.972}
    """
    stats = require("scipy.stats")
    found = stats.binomtest(successes, trials).proportion_ci(_COVERAGE, method="wilson")
    return Interval(mean=successes / trials, low=float(found.low), high=float(found.high))


def bootstrap_interval(values: Sequence[float] | NDArray[np.float64], *, resamples: int = 10_000) -> Interval:
    """Return the mean with the 95 % interval of the percentile bootstrap; the resamples have a fixed seed.

    Example:
        >>> {name: round(value, 2) for name, value in bootstrap_interval([1.0, 2.0, 3.0, 4.0]).items()}
        {'mean': 2.5, 'low': 1.5, 'high': 3.5}
    """
    array = np.asarray(values, dtype=float)
    picked = np.random.default_rng(0).integers(0, len(array), (resamples, len(array)))
    tail = 50 * (1 - _COVERAGE)
    low, high = np.percentile(array[picked].mean(1), [tail, 100 - tail])
    return Interval(mean=float(array.mean()), low=float(low), high=float(high))


def bootstrap_intervals(table: Sequence[Sequence[float]] | NDArray[np.float64]) -> list[Interval]:
    """Return the `bootstrap_interval` of every column of a table whose rows are repetitions."""
    return [bootstrap_interval(column) for column in np.asarray(table, dtype=float).T]
