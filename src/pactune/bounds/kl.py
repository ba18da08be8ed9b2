"""The binary Kullback–Leibler divergence and its inverse, rounded so that a bound is never too small."""

from __future__ import annotations

import math

from pactune.checks import SHARE, Rule, check_number

__all__ = ["binary_kl", "kl_inverse", "kl_inverse_lower"]

SLACK = 8 * 2.0**-52  # the rounding error of a computed divergence, relative to the size of its two terms


def binary_kl(q: float, p: float) -> float:
    """Return kl(q‖p) = q log(q/p) + (1−q) log((1−q)/(1−p)), with 0 log 0 = 0.

    >>> round(binary_kl(0.1, 0.2), 6)
    0.03669
    >>> binary_kl(0.3, 0.3), binary_kl(0.3, 1.0)
    (0.0, inf)
    """
    _check_share("q", q)
    _check_share("p", p)
    if q == p:
        return 0.0
    return max(0.0, _term(q, p) + _term(1 - q, 1 - p))


def kl_inverse(q: float, c: float) -> float:
    """Return sup{p ≥ q : kl(q‖p) ≤ c}, rounded up: at the returned value the exact divergence is at least c.

    Found by bisection. The result allows for rounding and exceeds the exact inverse by about 1e-14.

    Args:
        q: the empirical risk, in [0, 1].
        c: the budget in nats per example, ≥ 0.

    >>> round(kl_inverse(0.1, 0.05), 4)
    0.2201
    >>> kl_inverse(0.0, 0.0), kl_inverse(0.5, math.inf)
    (0.0, 1.0)
    """
    return _edge(q, c, 1.0)


def kl_inverse_lower(q: float, c: float) -> float:
    """Return inf{p ≤ q : kl(q‖p) ≤ c}, rounded down.

    >>> round(kl_inverse_lower(0.1, 0.05), 4)
    0.0313
    """
    return _edge(q, c, 0.0)


def _edge(q: float, c: float, end: float) -> float:
    """Return the point between q and `end`, nearest to q, at which the divergence is certainly ≥ c; else `end`."""
    _check_share("q", q)
    _check_budget(c)
    if c == 0:
        return q
    inside, outside = q, end
    while True:
        middle = 0.5 * (inside + outside)
        if middle in (inside, outside):
            return outside
        if _at_least(q, middle, c):
            outside = middle
        else:
            inside = middle


def _term(q: float, p: float) -> float:
    if q == 0:
        return 0.0
    return q * math.log(q / p) if p > 0 else math.inf


def _at_least(q: float, p: float, c: float) -> bool:
    """True if kl(q‖p) ≥ c in spite of rounding in the two terms."""
    first, second = _term(q, p), _term(1 - q, 1 - p)
    return first + second - SLACK * (abs(first) + abs(second) + 1) >= c


def _check_share(name: str, value: float) -> None:
    check_number(name, value, SHARE, hint="scale a bounded loss to [0, 1] first")


def _check_budget(c: float) -> None:
    check_number("c", c, Rule("a number ≥ 0", lambda value: value >= 0))
