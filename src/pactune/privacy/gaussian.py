"""Exact (ε, δ) of the Gaussian mechanism (Balle and Wang 2018), and its composition as Gaussian differential privacy.

The privacy of a release f(S) + N(0, σ²I) depends on one number, μ = Δ₂f/σ: the distance between the outputs of two
neighbouring data sets in standard deviations. Everything here is a function of μ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pactune.checks import NOT_NEGATIVE, PROBABILITY, Rule, check_number, shown
from pactune.errors import SettingError
from pactune.extras import require

__all__ = ["classical_epsilon", "compose", "delta_of", "epsilon_of", "mu_of"]


def delta_of(epsilon: float, mu: float) -> float:
    """Return the least δ at which the mechanism is (ε, δ)-private: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    """
    _check_mu(mu)
    check_number("epsilon", epsilon, NOT_NEGATIVE)
    if mu == 0:
        return 0.0
    log_ndtr = require("scipy.special").log_ndtr
    a, b = float(log_ndtr(mu / 2 - epsilon / mu)), float(log_ndtr(-mu / 2 - epsilon / mu))
    return max(0.0, -math.exp(a) * math.expm1(min(0.0, epsilon + b - a)))


def epsilon_of(delta: float, mu: float) -> float:
    """Return the least ε at which the mechanism is (ε, δ)-private, rounded up.

    >>> round(epsilon_of(1e-5, 0.1), 5)
    0.34067
    """
    _check_delta(delta)
    _check_mu(mu)
    if mu == 0 or delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    return _from_above(lambda epsilon: delta_of(epsilon, mu) <= delta, 0.0, high)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (ε, δ)-private, rounded down.

    >>> round(epsilon_of(1e-6, mu_of(0.5, 1e-6)), 6)
    0.5
    """
    _check_delta(delta)
    high = 1.0
    while delta_of(epsilon, high) <= delta:
        high *= 2
    return -_from_above(lambda minus: delta_of(epsilon, -minus) <= delta, -high, 0.0)


def compose(mus: Iterable[float]) -> float:
    """Return μ of several releases of the same data, √Σμ² (Dong, Roth and Su); exact for Gaussian mechanisms.

    Releases of disjoint rows cost less, only max μ (parallel composition).

    >>> compose([3.0, 4.0])
    5.0
    """
    try:
        listed = list(mus)
    except TypeError as error:
        raise SettingError(f"`mus` must be a list of numbers ≥ 0, got {shown(mus)}") from error
    for mu in listed:
        check_number("mus", mu, Rule("finite numbers ≥ 0", NOT_NEGATIVE.holds))
    return math.hypot(*listed)


def classical_epsilon(delta: float, mu: float) -> float:
    """Return the textbook ε = μ√(2 log(1.25/δ)), which is valid below 1 only and larger than the exact ε."""
    _check_delta(delta)
    _check_mu(mu)
    return mu * math.sqrt(2 * math.log(1.25 / delta))


def _from_above(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least point of (low, high] at which a monotone condition holds, by bisection."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _check_mu(mu: float) -> None:
    check_number("mu", mu, NOT_NEGATIVE)


def _check_delta(delta: float) -> None:
    check_number("delta", delta, PROBABILITY)
