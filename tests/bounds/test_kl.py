"""The binary divergence and its inverse, judged by forty digits of mpmath."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pactune.bounds import binary_kl, kl_inverse, kl_inverse_lower
from pactune.errors import SettingError

shares = st.floats(0, 1)
inner = st.floats(1e-9, 1 - 1e-9)
budgets = st.one_of(st.floats(0, 20), st.floats(1e-12, 1e-3))


def exact(q: float, p: float) -> mpmath.mpf:
    with mpmath.workdps(40):
        a, b = mpmath.mpf(q), mpmath.mpf(p)
        first = a * mpmath.log(a / b) if q else mpmath.mpf(0)
        second = (1 - a) * mpmath.log((1 - a) / (1 - b)) if q < 1 and p < 1 else mpmath.mpf(0)
        return first + second if p < 1 or q == 1 else mpmath.inf


@pytest.mark.parametrize(
    ("q", "c", "up", "down"),
    # roots found by mpmath at 40 digits
    [(0.1, 0.05, 0.2200786011069246, 0.0312783962722852), (0.0, math.log(2), 0.5, 0.0), (1.0, math.log(2), 1.0, 0.5)],
)
def test_golden_values(q: float, c: float, up: float, down: float) -> None:
    assert kl_inverse(q, c) == pytest.approx(up, abs=1e-13)
    assert kl_inverse_lower(q, c) == pytest.approx(down, abs=1e-13)


def test_golden_divergence() -> None:
    assert binary_kl(0.1, 0.2) == pytest.approx(0.036690014034750578, rel=1e-14)
    assert binary_kl(0.0, 0.25) == pytest.approx(math.log(4 / 3), rel=1e-14)
    assert binary_kl(0.5, 0.0) == math.inf


@given(shares, inner)
def test_divergence_is_at_least_pinsker(q: float, p: float) -> None:
    assert binary_kl(q, p) >= 2 * (q - p) ** 2 - 1e-15


@settings(max_examples=300)
@given(shares, budgets)
def test_inverse_never_errs_on_the_low_side(q: float, c: float) -> None:
    value = kl_inverse(q, c)
    assert value >= q
    if c and value < 1:
        assert exact(q, value) >= c
    lower = kl_inverse_lower(q, c)
    assert lower <= q
    if c and lower > 0:
        assert exact(q, lower) >= c


@given(shares, budgets)
def test_inverse_is_tight(q: float, c: float) -> None:
    value = kl_inverse(q, c)
    nearby = value - 1e-7
    if nearby > q:
        assert exact(q, nearby) < c


@given(inner, inner)
def test_inverse_of_the_divergence_is_the_point(q: float, p: float) -> None:
    low, high = sorted((q, p))
    # near kl = 0 the inverse has slope 1/√kl, so rounding of 1e-15 in kl moves it by some 1e-7
    assert kl_inverse(low, binary_kl(low, high)) == pytest.approx(high, abs=2e-7)


@given(shares, budgets, budgets)
def test_inverse_grows_with_the_budget(q: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert kl_inverse(q, low) <= kl_inverse(q, high)


@given(shares, shares, budgets)
def test_inverse_grows_with_the_risk(a: float, b: float, c: float) -> None:
    low, high = sorted((a, b))
    assert kl_inverse(low, c) <= kl_inverse(high, c) + 1e-12


@pytest.mark.parametrize(("q", "c"), [(-0.1, 0.1), (1.1, 0.1), (math.nan, 0.1), (0.1, -1.0), (0.1, math.nan)])
def test_wrong_numbers_are_refused(q: float, c: float) -> None:
    with pytest.raises(SettingError, match="must be"):
        kl_inverse(q, c)
