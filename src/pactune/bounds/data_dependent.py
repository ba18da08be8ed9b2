"""The paper's bounds for a private prior (Theorems 2.1, A.2–A.4), and the reason why all of them are vacuous.

Rogers et al. give the constants c1, c2 and that of β only as O(·); they are arguments here. No choice of them helps:

- The condition of Theorem 2.1, β < s·exp(s(c1ε² + c2√(δ/ε) − 2)), with β ≥ exp(−sε²), forces
  c1ε² + c2√(δ/ε) > 2 − ε² − log(s)/s, and that sum stands under the root. With ε ≤ ½ the root is at least 1.17.
- The general form (Theorem A.3) has β·exp(2s) in the numerator of its logarithm, so the root is at least
  √((2s − sε²)/(2s−1)) > √(1 − ε²/2) ≥ 0.935.

A risk lies in [0, 1], so a bound that adds 0.935 or more to it is of no use. Use `pactune.certify`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from pactune.bounds.rounding import round_down
from pactune.checks import (
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    Rule,
    check_count,
    check_flag,
    check_number,
    check_type,
    is_number,
    shown,
)
from pactune.errors import SettingError

__all__ = ["DataDependentBound", "PrivatePrior", "theorem_2_1", "theorem_a3"]


@dataclass(frozen=True)
class PrivatePrior:
    """A prior whose samples are (ε, δ)-differentially private in the bound sample.

    Args:
        epsilon: ε in (0, ½].
        delta: δ in (0, ε).
        rows: s, the size of the bound sample.
        c1: the constant of ε² in the max-information bound; unknown, any positive number.
        c2: the constant of √(δ/ε); likewise.
        c_beta: the constant of s√(δ/ε) in β; likewise.
    """

    epsilon: float
    delta: float
    rows: int
    c1: float = 1.0
    c2: float = 1.0
    c_beta: float = 1.0

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, Rule("in (0, 1/2]", lambda value: 0 < value <= 0.5))
        inside = Rule(f"in (0, epsilon={self.epsilon})", lambda value: 0 < value < self.epsilon)
        check_number("delta", self.delta, inside)
        check_count("rows", self.rows)
        check_number("c1", self.c1, POSITIVE)
        check_number("c2", self.c2, POSITIVE)
        check_number("c_beta", self.c_beta, NOT_NEGATIVE)

    @property
    def beta(self) -> float:
        """β = exp(−sε²) + c_β s √(δ/ε), the failure probability of the max-information bound."""
        return math.exp(self.log_beta)

    @property
    def log_beta(self) -> float:
        """The logarithm of β, which does not underflow."""
        first = -self.rows * self.epsilon**2
        second = self.c_beta * self.rows * math.sqrt(self.delta / self.epsilon)
        return _log_add(first, math.log(second)) if second > 0 else first

    @property
    def rate(self) -> float:
        """c1ε² + c2√(δ/ε), the max-information bound per row (Theorem A.2)."""
        return self.c1 * self.epsilon**2 + self.c2 * math.sqrt(self.delta / self.epsilon)

    @property
    def max_information(self) -> float:
        """The bound s(c1ε² + c2√(δ/ε)) on the β-approximate max-information, in nats (Theorem A.2)."""
        return self.rows * self.rate


class DataDependentBound(NamedTuple):
    """The bound of a theorem.

    Attributes:
        value: the bound on the risk, in the units of the loss.
        added: the bound minus the empirical risk.
        applies: True if the conditions of the theorem hold.
        vacuous: True if the theorem does not apply or its bound is not below the upper end of the loss.
        least_added: the smallest possible `added`, over all c1, c2 and Q to which the theorem applies.
        why: the reason in words.
    """

    value: float
    added: float
    applies: bool
    vacuous: bool
    least_added: float
    why: str


def theorem_2_1(
    risk: float,
    kl: float,
    prior: PrivatePrior,
    *,
    failure: float = 0.05,
    interval: tuple[float, float] = (0.0, 1.0),
    paper_constant: bool = True,
) -> DataDependentBound:
    """Return Theorem 2.1: R̂ + (b−a)√(KL/s + log(5s/Δ)/s + c1ε² + c2√(δ/ε)).

    Args:
        risk: R̂ in [a, b].
        kl: KL(Q‖P) ≥ 0.
        prior: ε, δ, s and the constants.
        failure: Δ.
        interval: [a, b], the range of the loss (Theorem A.4).
        paper_constant: True for 1/s as printed in Theorem 2.1, False for the 1/(2s−1) of Theorem A.3, part 2.
    """
    check_type("prior", prior, PrivatePrior, "a PrivatePrior")
    low, high = _range(risk, kl, failure, interval)
    check_flag("paper_constant", paper_constant)
    s = prior.rows
    share = 1 / s if paper_constant else 1 / (2 * s - 1)
    added = (high - low) * math.sqrt(share * (kl + math.log(5 * s / failure)) + prior.rate)
    # the logarithm of the condition's right-hand side, since the value itself underflows
    room = math.log(s) + s * (prior.rate - 2)
    applies = prior.log_beta < min(0.0, room)
    least = (high - low) * math.sqrt(max(0.0, 2 - prior.epsilon**2 - math.log(s) / s))
    why = (
        f"β ≥ exp(−sε²), so the condition on β forces c1ε² + c2√(δ/ε) > 2 − ε² − log(s)/s = "
        f"{2 - prior.epsilon**2 - math.log(s) / s:.3f}, which stands under the root: where the theorem applies it adds "
        f"at least {round_down(least, 3)} to a risk in [{low:g}, {high:g}], for every c1 and c2"
    )
    if not applies:
        why = f"the theorem does not apply: β = {prior.beta:.3g} breaks its condition. And where it applies: {why}"
    return DataDependentBound(risk + added, added, applies, not applies or risk + added >= high, least, why)


def theorem_a3(
    risk: float,
    kl: float,
    prior: PrivatePrior,
    *,
    failure: float = 0.05,
    interval: tuple[float, float] = (0.0, 1.0),
) -> DataDependentBound:
    """Return the general form, Theorem A.3 (A.4 for an interval), which requires only β < 1.

    R̂ + (b−a) √((KL + log((4s exp(s(c1ε² + c2√(δ/ε))) + β exp(2s))/Δ))/(2s−1)).
    """
    check_type("prior", prior, PrivatePrior, "a PrivatePrior")
    low, high = _range(risk, kl, failure, interval)
    s = prior.rows
    numerator = _log_add(math.log(4 * s) + prior.max_information, prior.log_beta + 2 * s)
    added = (high - low) * math.sqrt((kl + numerator - math.log(failure)) / (2 * s - 1))
    applies = prior.log_beta < 0
    least = (high - low) * math.sqrt(1 - prior.epsilon**2 / 2)
    why = (
        f"the logarithm holds β exp(2s) ≥ exp(2s − sε²), so the root is at least √(1 − ε²/2): the theorem adds at "
        f"least {round_down(least, 3)} to a risk in [{low:g}, {high:g}], for every c1 and c2"
    )
    if not applies:
        why = f"the theorem does not apply: β = {prior.beta:.3g} is not below 1. And where it applies: {why}"
    return DataDependentBound(risk + added, added, applies, not applies or risk + added >= high, least, why)


def _log_add(a: float, b: float) -> float:
    """Return log(eᵃ + eᵇ)."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _range(risk: float, kl: float, failure: float, interval: tuple[float, float]) -> tuple[float, float]:
    ends = tuple(interval) if isinstance(interval, (tuple, list)) else ()
    if len(ends) != 2 or not all(is_number(end) and math.isfinite(end) for end in ends) or not ends[0] < ends[1]:
        raise SettingError(f"`interval` must be (a, b) with a < b, got {shown(interval)}")
    low, high = ends
    check_number("risk", risk, Rule(f"in [{low:g}, {high:g}]", lambda value: low <= value <= high))
    check_number("kl", kl, Rule("a number ≥ 0", lambda value: value >= 0))
    check_number("failure", failure, PROBABILITY)
    return low, high
