"""The divergence of two Langevin chains from the sums of a run: Corollaries 2.1 and A.2, and the exact log-ratio.

A chain moves by θ' = θ − η g(θ) + N(0, (2η/τ) I). Given θ, the next iterates of both chains are Gaussian, so the
divergence of the paths is a sum over steps; that of the last iterates is no larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pactune.checks import FINITE, POSITIVE, Rule, check_count, check_flag, check_number, shown
from pactune.errors import SettingError

__all__ = ["ChainStep", "noise_constant", "path_kl", "path_log_ratio", "unequal_path_kl"]


def path_kl(squares: float, lr: float, inverse_temperature: float) -> float:
    """Return (ητ/4) Σ_t E‖Δ_t‖², the path divergence of two chains of equal noise (Corollary 2.1 with τ = n_V).

    Args:
        squares: Σ_t E‖Δ_t‖², Δ_t the difference of the two drifts at θ_t of the first chain.
        lr: η.
        inverse_temperature: τ of both chains.

    >>> path_kl(squares=2.0, lr=0.1, inverse_temperature=100.0)
    5.0
    """
    check_number("squares", squares, Rule("a number ≥ 0", lambda value: value >= 0))
    _check_positive(lr=lr, inverse_temperature=inverse_temperature)
    return lr * inverse_temperature / 4 * squares


def path_log_ratio(squares: float, products: float, lr: float, inverse_temperature: float) -> float:
    """Return log dQ/dP = (ητ/4) Σ_t‖Δ_t‖² + √(ητ/2) Σ_t⟨ξ_t, Δ_t⟩ of one path sampled from Q; exact.

    Args:
        squares: Σ_t‖Δ_t‖² along the path, Δ_t = g^P(θ_t) − g^Q(θ_t).
        products: Σ_t⟨ξ_t, Δ_t⟩ with the standard normal ξ_t that moved the path.
        lr: η.
        inverse_temperature: τ of both chains.
    """
    check_number("products", products, FINITE)
    squared = path_kl(squares, lr, inverse_temperature)
    return squared + math.sqrt(lr * inverse_temperature / 2) * products


def noise_constant(steps: int, parameters: int, ratio: float) -> float:
    """Return B = T (m/2)(r − log r − 1), the part of the divergence that comes from unequal noise alone.

    The paper leaves B out of its objective. It is 0 only at equal noise: with m = 7850, T = 1000 and n_V = 2 n_T it is
    more than a million nats.

    Args:
        steps: T.
        parameters: m.
        ratio: r = n_V η_T / (n_T η_V), the ratio of the two variances.

    >>> noise_constant(1000, 7850, 1.0)
    0.0
    >>> round(noise_constant(1000, 7850, 2.0))
    1204397
    """
    check_count("steps", steps, 0)
    check_count("parameters", parameters, 0)
    _check_positive(ratio=ratio)
    return steps * parameters / 2 * (ratio - 1 - math.log(ratio))


class ChainStep(NamedTuple):
    """One step of two chains.

    Attributes:
        drift: E‖η_T ∇R_T − η_V clip_γ(∇R_V)‖².
        train_lr: η_T.
        valid_lr: η_V.
    """

    drift: float
    train_lr: float
    valid_lr: float


def unequal_path_kl(
    steps: Sequence[ChainStep], *, train_tau: float, valid_tau: float, parameters: int, paper: bool = False
) -> float:
    """Return the path divergence of two chains whose steps and temperatures differ (Corollary A.2, with its ½).

    Σ_t τ_V/(4η_V) ‖η_T ∇R_T − η_V clip_γ(∇R_V)‖² + (m/2)(r_t − log r_t − 1),  r_t = τ_V η_T / (τ_T η_V).

    Args:
        steps: the drift differences and step sizes.
        train_tau: τ_T; n_T in the paper.
        valid_tau: τ_V; n_V in the paper.
        parameters: m.
        paper: True for the paper's form, which has m in place of m/2: it is valid and looser.
    """
    _check_positive(train_tau=train_tau, valid_tau=valid_tau)
    check_count("parameters", parameters, 0)
    check_flag("paper", paper)
    if not isinstance(steps, Sequence) or not all(isinstance(step, ChainStep) for step in steps):
        raise SettingError(f"`steps` must be a list of ChainStep, got {shown(steps)}")
    total = 0.0
    for step in steps:
        check_number("drift", step.drift, Rule("a number ≥ 0", lambda value: value >= 0))
        _check_positive(train_lr=step.train_lr, valid_lr=step.valid_lr)
        ratio = valid_tau * step.train_lr / (train_tau * step.valid_lr)
        spread = noise_constant(1, parameters, ratio)
        total += valid_tau / (4 * step.valid_lr) * step.drift + (2 * spread if paper else spread)
    return total


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        check_number(name, value, Rule("positive and finite", POSITIVE.holds))
