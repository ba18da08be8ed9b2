"""The audit: the threshold comes from the scores with the row, the counts from the other half."""

from __future__ import annotations

import math

import pytest
import torch

import pactune as pt
from pactune.privacy import epsilon_lower_bound, membership_audit

DELTA = 1e-3


def twice(scores: torch.Tensor) -> torch.Tensor:
    """Return the same scores for the half that chooses and for the half that is counted."""
    return torch.cat([scores, scores])


def test_the_threshold_may_lie_between_scores_that_never_overlap() -> None:
    """Thresholds are quantiles of the scores of both data sets: one of them has all 100 hits and no false alarm."""
    with_row, without_row = torch.linspace(10, 20, 100), torch.zeros(100)
    expected = epsilon_lower_bound(100, 0, 100, DELTA)
    assert membership_audit(twice(with_row), twice(without_row), DELTA) == pytest.approx(expected, rel=1e-12)


def test_equal_scores_prove_nothing() -> None:
    scores = twice(torch.linspace(0, 1, 200))
    assert membership_audit(scores, scores, DELTA) == 0.0


@pytest.mark.parametrize(("first", "second"), [(199, 199), (198, 198), (200, 202), (202, 200)])
def test_too_few_or_unequal_outputs_are_refused(first: int, second: int) -> None:
    with pytest.raises(pt.SettingError, match="at least 200"):
        membership_audit(torch.rand(first), torch.rand(second), DELTA)


def test_two_hundred_outputs_are_enough() -> None:
    assert membership_audit(torch.ones(200), torch.zeros(200), DELTA) >= 0.0


@pytest.mark.parametrize(("hits", "alarms"), [(-1, 0), (0, -1), (11, 0), (0, 11)])
def test_impossible_counts_are_refused(hits: int, alarms: int) -> None:
    with pytest.raises(pt.SettingError, match=r"between 0 and trials=10|whole number ≥ 0"):
        epsilon_lower_bound(hits, alarms, 10, DELTA)


def test_lower_bound_is_the_ratio_of_the_limits() -> None:
    """Clopper–Pearson limits at (1 − confidence)/2 on each side, in closed form for no and for all successes."""
    tail, trials = 0.005, 100
    low, high = tail ** (1 / trials), 1 - tail ** (1 / trials)
    assert epsilon_lower_bound(trials, 0, trials, DELTA) == pytest.approx(math.log((low - DELTA) / high), rel=1e-9)
    assert epsilon_lower_bound(0, trials, trials, DELTA) == 0.0


def test_more_confidence_proves_less() -> None:
    found = [epsilon_lower_bound(90, 10, 100, DELTA, confidence) for confidence in (0.9, 0.99, 0.999)]
    assert found[0] > found[1] > found[2] > 0


def test_both_directions_of_an_attack_count() -> None:
    """A rule that is rarely wrong on D' and one that is rarely wrong on D prove the same by symmetry."""
    assert epsilon_lower_bound(50, 1, 100, 0.0) == pytest.approx(epsilon_lower_bound(99, 50, 100, 0.0), rel=1e-12)
