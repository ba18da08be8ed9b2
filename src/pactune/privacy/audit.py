"""A statistical audit: the lower bound on ε that an attacker proves from outputs on two neighbouring data sets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pactune.checks import BELOW_ONE, PROBABILITY, check_count, check_number, shown
from pactune.errors import SettingError
from pactune.extras import require

__all__ = ["epsilon_lower_bound", "membership_audit"]


def epsilon_lower_bound(hits: int, false_alarms: int, trials: int, delta: float, confidence: float = 0.99) -> float:
    """Return a lower confidence limit of the mechanism's true ε at δ (Clopper–Pearson).

    (ε, δ)-privacy means P(hit) ≤ e^ε P(false alarm) + δ for every attack, and the same with D and D' exchanged.

    Args:
        hits: how often the attack answered "D" on outputs from D.
        false_alarms: how often it answered "D" on outputs from the neighbour D'.
        trials: the number of outputs from each data set.
        delta: δ.
        confidence: the confidence of the statement, both limits together.
    """
    for name, count in (("hits", hits), ("false_alarms", false_alarms), ("trials", trials)):
        check_count(name, count, 0)
    check_number("delta", delta, BELOW_ONE)
    check_number("confidence", confidence, PROBABILITY)
    if not 0 <= min(hits, false_alarms) <= max(hits, false_alarms) <= trials:
        raise SettingError(f"counts must lie between 0 and trials={trials}, got {hits} and {false_alarms}")
    tail = (1 - confidence) / 2
    ratios = [
        (_lower(hits, trials, tail) - delta, _upper(false_alarms, trials, tail)),
        (_lower(trials - false_alarms, trials, tail) - delta, _upper(trials - hits, trials, tail)),
    ]
    return max([0.0, *(math.log(p / q) for p, q in ratios if p > 0 and q > 0)])


def membership_audit(with_row: Tensor, without_row: Tensor, delta: float, confidence: float = 0.99) -> float:
    """Attack a mechanism by a threshold on a score, and return the lower bound on ε that the attack proves.

    The first half of the scores chooses the threshold and its direction. The second half is counted, so that the choice
    does not weaken the statement. The attack also tries to separate finite scores from NaN and ∞, which reveal as much
    as any other output.

    Args:
        with_row: a score of each output on D. Shape (trials,).
        without_row: the same for the neighbour D'. Shape (trials,).
        delta: δ.
        confidence: the confidence of the statement.
    """
    for name, given in (("with_row", with_row), ("without_row", without_row)):
        if not isinstance(given, Tensor) or given.ndim != 1 or given.is_complex() or given.dtype == torch.bool:
            raise SettingError(f"`{name}` must be a vector of scores, one number per output, got {shown(given)}")
    half = len(with_row) // 2
    if half < 100 or len(without_row) != len(with_row):
        raise SettingError(f"an audit needs the same number of outputs, at least 200, of each; got {len(with_row)}")
    scores = [torch.where(given.isnan(), math.inf, given.double()) for given in (with_row, without_row)]
    choose, count = [score[:half] for score in scores], [score[half:] for score in scores]
    attacks = [(threshold, swap) for threshold in _thresholds(torch.cat(choose)) for swap in (False, True)]

    def found(pair: list[Tensor], attack: tuple[float, bool]) -> float:
        threshold, swap = attack
        hits, alarms = (int((score > threshold).sum()) for score in (reversed(pair) if swap else pair))
        return epsilon_lower_bound(hits, alarms, len(pair[0]), delta, confidence)

    return found(count, max(attacks, key=lambda attack: found(choose, attack)))


def _thresholds(scores: Tensor) -> list[float]:
    """Return quantiles of the finite scores, and the two thresholds that separate infinite scores."""
    finite, largest = scores[scores.isfinite()], torch.finfo(scores.dtype).max
    levels = torch.linspace(0.02, 0.98, 49, dtype=scores.dtype, device=scores.device)
    inner = finite.quantile(levels).tolist() if len(finite) else []
    return [*inner, -largest, largest]


def _lower(successes: int, trials: int, tail: float) -> float:
    beta = require("scipy.stats").beta
    return float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0


def _upper(successes: int, trials: int, tail: float) -> float:
    beta = require("scipy.stats").beta
    return float(beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
