"""Certificates keep their promise, and the test would notice if not. The long form is benchmarks/coverage.py."""

from __future__ import annotations

from typing import Any

import pytest

from pactune.paper.certificates.attempt_cases import ATTEMPTS
from pactune.paper.certificates.attempts import Attempt, run_attempt
from pactune.paper.certificates.coverage import CoverageStudy, Mode, run_coverage

# settings in which the models overfit the bound sample: empirical error far below the true one
OVERFIT: dict[Mode, dict[str, Any]] = {
    "hold-out": {},
    "train": {},
    "union": {},
    "validation": {"decay": 0.1, "inverse_temperature": 50.0},
}
BROKEN: dict[Mode, dict[str, Any]] = {
    "broken train": {},
    "broken validation": {"decay": 4.0, "dimensions": 200, "rows": 50, "inverse_temperature": 1000.0},
}


@pytest.mark.parametrize("delta", [0.5, 0.05])
@pytest.mark.parametrize("mode", OVERFIT)
def test_violations_are_at_most_delta(mode: Mode, delta: float) -> None:
    found = run_coverage(CoverageStudy(mode, delta, repetitions=300, **OVERFIT[mode]))
    assert found.violations <= delta * found.repetitions
    if mode != "hold-out":
        assert found.violations == 0
    assert found.certificate < 0.9, "a vacuous certificate would cover whatever happens"


@pytest.mark.parametrize("delta", [0.5, 0.05])
@pytest.mark.parametrize("mode", BROKEN)
def test_a_prior_that_has_seen_the_sample_breaks_the_promise(mode: Mode, delta: float) -> None:
    found = run_coverage(CoverageStudy(mode, delta, repetitions=300, **BROKEN[mode]))
    assert found.violations > 0.6 * found.repetitions > delta * found.repetitions


@pytest.mark.parametrize("mode", ["train", "union", "validation"])
def test_the_log_ratio_has_the_moment_of_a_density(mode: Mode) -> None:
    """E_Q exp(−log dQ/dP) = 1; four standard errors, with log-ratios of the order of 1."""
    study = CoverageStudy(mode, 0.5, repetitions=1000, dimensions=10, inverse_temperature=3.0, decay=0.1)
    found = run_coverage(study)
    assert abs(found.moment - 1) <= 4 * found.moment_error
    assert 1e-3 < found.moment_error < 0.1, "a log-ratio of zero, or an error of one, would prove nothing"


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: f"{attempt.item}: {attempt.name}")
def test_an_attempt_at_a_false_certificate_is_refused_and_a_right_use_is_true(attempt: Attempt) -> None:
    found = run_attempt(attempt, repetitions=1)
    assert found.false == 0
    assert found.refused == (0 if attempt.right else 1), found.words
    if attempt.right:
        assert found.truth is not None
        assert found.certificate is not None
        assert found.truth <= found.certificate
