"""The paper's theorems as printed and as corrected, and the proof that the private prior's bound is vacuous."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pactune.bounds import ChainStep, PrivatePrior, noise_constant, path_kl, theorem_2_1, theorem_a3, unequal_path_kl
from pactune.errors import SettingError

PRIOR = PrivatePrior(epsilon=0.5, delta=1e-6, rows=30_000)


def test_golden_constants() -> None:
    assert PRIOR.log_beta == pytest.approx(math.log(30_000 * math.sqrt(2e-6)))
    assert PRIOR.max_information == pytest.approx(30_000 * (0.25 + math.sqrt(2e-6)))
    # sums written out by hand
    value = theorem_2_1(0.1, 100.0, PRIOR).value
    assert value == pytest.approx(0.1 + math.sqrt((100 + math.log(150_000 / 0.05)) / 30_000 + 0.25 + math.sqrt(2e-6)))


priors = st.builds(
    lambda e, share, s, c1, c2, cb: PrivatePrior(e, share * e, s, c1, c2, cb),
    st.floats(1e-3, 0.5),
    st.floats(1e-18, 0.99),
    st.integers(1, 10**6),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
    st.floats(0, 10),
)


@settings(max_examples=400)
@given(priors)
def test_no_constants_make_the_theorems_say_anything(prior: PrivatePrior) -> None:
    main, general = theorem_2_1(0.0, 0.0, prior), theorem_a3(0.0, 0.0, prior)
    assert main.vacuous
    if main.applies:
        assert main.added >= main.least_added - 1e-12
        assert main.added >= math.sqrt(1.38) - 1e-2 or prior.rows < 3
    assert general.added >= math.sqrt(1 - prior.epsilon**2 / 2) - 1e-12 >= 0.935 - 1e-3


def test_a_theorem_that_applies_exists_and_says_why_it_is_vacuous() -> None:
    prior = PrivatePrior(epsilon=0.5, delta=1e-40, rows=30_000, c1=8.0)
    bound = theorem_2_1(0.1, 0.0, prior)
    assert bound.applies
    assert bound.vacuous
    assert "for every c1 and c2" in bound.why
    assert "does not apply" in theorem_2_1(0.1, 0.0, PRIOR).why
    assert "√(1 − ε²/2)" in theorem_a3(0.1, 0.0, prior).why


@given(st.floats(0, 1), st.floats(0, 100), st.floats(0, 50))
def test_bounds_grow_with_divergence_and_scale_with_the_interval(risk: float, kl: float, more: float) -> None:
    for theorem in (theorem_2_1, theorem_a3):
        here = theorem(risk, kl, PRIOR)
        assert here.value >= risk
        assert theorem(risk, kl + more, PRIOR).value >= here.value
        assert theorem(2 * risk - 1, kl, PRIOR, interval=(-1.0, 1.0)).added == pytest.approx(2 * here.added)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="epsilon"):
        PrivatePrior(0.6, 1e-6, 100)
    with pytest.raises(SettingError, match="delta"):
        PrivatePrior(0.1, 0.2, 100)
    with pytest.raises(SettingError, match="interval"):
        theorem_2_1(0.1, 0.0, PRIOR, interval=(1.0, 0.0))


def gaussian_kl(drift: float, variance: float, prior_variance: float, m: int) -> float:
    """KL of two isotropic Gaussians in m dimensions whose means are √drift apart."""
    ratio = variance / prior_variance
    return 0.5 * (m * (ratio - 1 - math.log(ratio)) + drift / prior_variance)


def test_corollary_a2_is_a_sum_of_gaussian_divergences() -> None:
    steps = [ChainStep(0.3, 0.1, 0.05), ChainStep(0.2, 0.05, 0.05), ChainStep(0.0, 0.02, 0.04)]
    expected = sum(gaussian_kl(s.drift, 2 * s.train_lr / 40, 2 * s.valid_lr / 70, 11) for s in steps)
    found = unequal_path_kl(steps, train_tau=40, valid_tau=70, parameters=11)
    assert found == pytest.approx(expected, rel=1e-12)
    assert unequal_path_kl(steps, train_tau=40, valid_tau=70, parameters=11, paper=True) > found


def test_equal_chains_reduce_to_corollary_2_1() -> None:
    steps = [ChainStep(0.1**2 * square, 0.1, 0.1) for square in (0.5, 0.25)]
    assert unequal_path_kl(steps, train_tau=50, valid_tau=50, parameters=7) == pytest.approx(path_kl(0.75, 0.1, 50))


def test_the_constant_the_paper_drops() -> None:
    assert noise_constant(1000, 7850, 2.0) == pytest.approx(1.204397e6, rel=1e-6)
    assert noise_constant(10, 5, 1.0) == 0.0
    with pytest.raises(SettingError, match="ratio"):
        noise_constant(1, 1, 0.0)
