"""PAC-Bayes bounds as functions of numbers: an empirical risk in [0, 1], a divergence, a sample size, a confidence.

All hold with probability at least 1 − δ over the bound sample of n independent rows, for a prior that has not seen it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pactune.bounds.kl import kl_inverse
from pactune.checks import FINITE, POSITIVE, PROBABILITY, SHARE, Rule, check_count, check_number, shown
from pactune.errors import SettingError

__all__ = ["catoni", "catoni_grid", "hold_out", "maurer_seeger", "mcallester", "path_bound", "pinsker"]

LEAST_ROWS = 8  # Maurer's 2√n is proved from here on


def hold_out(risk: float, n: int, delta: float) -> float:
    """Return kl⁻¹(R̂, log(1/δ)/n), the bound for a model that is independent of the n rows (Chernoff).

    >>> round(hold_out(0.1, 1000, 0.05), 4)
    0.1248
    """
    _check(risk, 0.0, n, delta, least=1)
    return kl_inverse(risk, _up(math.log(1 / delta) / n))


def maurer_seeger(risk: float, kl: float, n: int, delta: float) -> float:
    """Return kl⁻¹(R̂, (KL + log(2√n/δ))/n), the tightest of the classical forms (Seeger, Maurer).

    >>> round(maurer_seeger(0.1, 10.0, 1000, 0.05), 4)
    0.1645
    """
    _check(risk, kl, n, delta)
    return kl_inverse(risk, _budget(kl, n, delta))


def path_bound(risk: float, log_ratio: float, n: int, delta: float) -> float:
    """Return the bound of the M-sample path certificate, kl⁻¹(R̂, (L̄ + log(2√n/δ))/n).

    R̂ is the mean empirical risk of M models from paths W_c ~ Q, and L̄ the mean of log dQ/dP over the same paths. The
    bound is about the mean risk of those M models and has no Monte-Carlo term. It follows from
    E exp(n kl(R̂‖R) − log dQ/dP) ≤ 2√n by the convexity of exp and of kl. L̄ may be negative; its expectation is
    KL(Q‖P).
    """
    _check(risk, 0.0, n, delta)
    check_number("log_ratio", log_ratio, FINITE)
    return kl_inverse(risk, max(0.0, _budget(log_ratio, n, delta)))


def pinsker(risk: float, kl: float, n: int, delta: float) -> float:
    """Return R̂ + √((KL + log(2√n/δ))/2n), which follows from Maurer–Seeger by Pinsker's inequality; may exceed 1."""
    _check(risk, kl, n, delta)
    return risk + math.sqrt(_budget(kl, n, delta) / 2)


def mcallester(risk: float, kl: float, n: int, delta: float) -> float:
    """Return R̂ + √((KL + log(4n/δ))/(2n−1)) (McAllester 2003), the paper's starting point; may exceed 1."""
    _check(risk, kl, n, delta, least=1)
    return risk + math.sqrt(_up((kl + math.log(4 * n / delta)) / (2 * n - 1)))


def catoni(risk: float, kl: float, n: int, delta: float, c: float) -> float:
    """Return (1 − exp(−cR̂ − (KL + log(1/δ))/n))/(1 − e^−c) (Catoni), for a c fixed beforehand; may exceed 1.

    The bound is tighter than Maurer–Seeger at the best c. But c may not be chosen on the sample: see `catoni_grid`.
    """
    _check(risk, kl, n, delta, least=1)
    check_number("c", c, POSITIVE)
    return _up(math.expm1(-(c * risk + (kl + math.log(1 / delta)) / n)) / math.expm1(-c))


def catoni_grid(risk: float, kl: float, n: int, delta: float, grid: Sequence[float]) -> float:
    """Return the least Catoni bound over a grid of c that was fixed beforehand, each at δ divided by their number.

    >>> catoni_grid(0.1, 10.0, 1000, 0.05, [0.5, 1.0, 2.0]) >= 0.1
    True
    """
    if isinstance(grid, str) or not isinstance(grid, Sequence) or not grid:
        raise SettingError(f"`grid` must be a list of at least one value of c, got {shown(grid)}")
    check_number("delta", delta, PROBABILITY)
    return min(catoni(risk, kl, n, delta / len(grid), c) for c in grid)


def _budget(kl: float, n: int, delta: float) -> float:
    return _up((kl + math.log(2 * math.sqrt(n) / delta)) / n)


def _up(value: float) -> float:
    """Return a value that exceeds the exact one in spite of the rounding of a few operations."""
    return value + 8 * math.ulp(value)


def _check(risk: float, kl: float, n: int, delta: float, least: int = LEAST_ROWS) -> None:
    check_number("risk", risk, SHARE, hint="scale a bounded loss to [0, 1] first")
    check_number("kl", kl, Rule("a number ≥ 0", lambda value: value >= 0))
    check_count("n", n, least)
    check_number("delta", delta, PROBABILITY)
