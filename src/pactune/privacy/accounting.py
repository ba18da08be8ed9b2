"""The privacy cost of SGLD: ε for a δ, the frontier of both, and the largest step size for a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pactune.checks import POSITIVE, PROBABILITY, Rule, check_count, check_number, check_type, shown
from pactune.errors import SettingError
from pactune.privacy.gaussian import compose, delta_of, epsilon_of, mu_of

__all__ = ["FrontierPoint", "LargestStep", "Privacy", "frontier", "largest_step"]


@dataclass(frozen=True)
class Privacy:
    """The privacy of one pass of SGLD over disjoint batches, per-example gradients clipped.

    A step releases θ − (η/h) Σ clip_γ(∇ℓ_i) + N(0, (2η/τ) I). Replacing one row changes it by at most 2ηγ/h, so the
    step is a Gaussian mechanism with μ = (γ/h)√(2ητ). Each row is in one batch only, so the whole pass costs as much as
    its costliest step. Neighbouring data sets differ by the replacement of one row. (If rows are added or removed
    instead, the sensitivity is half of this.)

    Args:
        batch_size: h.
        clip: γ.
        lr: η, the largest of the pass.
        inverse_temperature: τ; the paper has τ = s, the number of rows.
        chains: C independent passes over the same rows. They compose on the same data, so μ grows with √C. (The paper
            calls them parallel and charges Cε and Cδ, which is far too much.)
    """

    batch_size: int
    clip: float
    lr: float
    inverse_temperature: float
    chains: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "chains"):
            check_count(name, getattr(self, name), words="at least 1, a whole number")
        for name in ("clip", "lr", "inverse_temperature"):
            check_number(name, getattr(self, name), Rule("positive and finite", POSITIVE.holds))

    @property
    def mu(self) -> float:
        """The μ of all chains together."""
        one = self.clip / self.batch_size * math.sqrt(2 * self.lr * self.inverse_temperature)
        return compose([one] * self.chains)

    def epsilon(self, delta: float) -> float:
        """Return the exact ε at δ.

        >>> round(Privacy(batch_size=300, clip=1.0, lr=0.05342, inverse_temperature=30_000).epsilon(1e-6), 3)
        0.784
        """
        return epsilon_of(delta, self.mu)

    def delta(self, epsilon: float) -> float:
        """Return the exact δ at ε."""
        return delta_of(epsilon, self.mu)


class FrontierPoint(NamedTuple):
    """A pair (ε, δ) that a run satisfies and that cannot be improved."""

    epsilon: float
    delta: float


def frontier(privacy: Privacy, deltas: Sequence[float] | None = None) -> list[FrontierPoint]:
    """Return the (ε, δ) frontier of a run; by default at 60 values of δ from 1e-12 to 0.1."""
    check_type("privacy", privacy, Privacy, "a Privacy")
    if deltas is not None and (isinstance(deltas, str) or not isinstance(deltas, Sequence)):
        raise SettingError(f"`deltas` must be a list of numbers in (0, 1) or None, got {shown(deltas)}")
    wanted = deltas if deltas is not None else [10 ** (-12 + 11 * i / 59) for i in range(60)]
    return [FrontierPoint(privacy.epsilon(delta), delta) for delta in wanted]


class LargestStep(NamedTuple):
    """The largest step size for a privacy budget, by three formulas.

    Attributes:
        paper: h²ε²/(sγ² log(1.25/δ)), Theorem A.5. It assumes a sensitivity of 1 where ‖f‖ ≤ 1 gives 2, so the step is
            not private at ε.
        corrected: a quarter of it: the same formula with the right sensitivity.
        exact: the step size from the analytic Gaussian mechanism; use this one.
        paper_epsilon: the true ε of the paper's step size.
    """

    paper: float
    corrected: float
    exact: float
    paper_epsilon: float


def largest_step(epsilon: float, delta: float, *, rows: int, batch_size: int, clip: float) -> LargestStep:
    """Return the largest admissible η for (ε, δ) at τ = s, by the paper's formula and by the corrected ones.

    >>> found = largest_step(0.5, 1e-6, rows=30_000, batch_size=300, clip=1.0)
    >>> [round(value, 4) for value in found]
    [0.0534, 0.0134, 0.0231, 0.7837]
    """
    check_number("epsilon", epsilon, POSITIVE)
    check_number("delta", delta, PROBABILITY)
    check_number("clip", clip, POSITIVE)
    check_count("rows", rows)
    check_count("batch_size", batch_size)
    share, exact_share = (mu * batch_size / clip for mu in (epsilon, mu_of(epsilon, delta)))
    paper = share * share / (rows * math.log(1.25 / delta))
    exact = exact_share * exact_share / (2 * rows)
    cost = Privacy(batch_size, clip, paper, rows).epsilon(delta)
    return LargestStep(paper, paper / 4, exact, cost)
