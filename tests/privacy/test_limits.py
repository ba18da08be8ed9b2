"""Where a privacy number ends: 0 < δ < 1, μ finite and not negative, step sizes by their formulas."""

from __future__ import annotations

import math

import pytest

import pactune as pt
from pactune.privacy import Privacy, delta_of, epsilon_of, largest_step, mu_of


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_delta_outside_of_zero_and_one_is_refused(delta: float) -> None:
    with pytest.raises(pt.SettingError, match="`delta` must be in"):
        epsilon_of(delta, 1.0)
    with pytest.raises(pt.SettingError, match="`delta` must be in"):
        mu_of(1.0, delta)


@pytest.mark.parametrize("mu", [-0.1, math.inf, math.nan])
def test_mu_that_is_no_distance_is_refused(mu: float) -> None:
    with pytest.raises(pt.SettingError, match="`mu` must be a finite"):
        delta_of(1.0, mu)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan])
def test_epsilon_below_zero_is_refused(epsilon: float) -> None:
    with pytest.raises(pt.SettingError, match="`epsilon` must be"):
        delta_of(epsilon, 1.0)


def test_no_distance_costs_nothing() -> None:
    assert delta_of(0.0, 0.0) == 0.0
    assert epsilon_of(1e-6, 0.0) == 0.0
    assert epsilon_of(0.5, 0.1) == 0.0  # a δ that large covers it all


def test_mu_and_epsilon_invert_each_other() -> None:
    for epsilon in (0.1, 0.5, 2.0):
        assert epsilon_of(1e-5, mu_of(epsilon, 1e-5)) == pytest.approx(epsilon, rel=1e-6)


def test_largest_steps_follow_their_formulas() -> None:
    epsilon, delta, rows, batch, clip = 0.7, 1e-5, 2000, 50, 2.0
    found = largest_step(epsilon, delta, rows=rows, batch_size=batch, clip=clip)
    assert found.paper == pytest.approx(batch**2 * epsilon**2 / (rows * clip**2 * math.log(1.25 / delta)), rel=1e-12)
    assert found.corrected == found.paper / 4
    for step, wanted in ((found.exact, epsilon), (found.paper, found.paper_epsilon)):
        assert Privacy(batch, clip, step, rows).epsilon(delta) == pytest.approx(wanted, rel=1e-6)
    assert found.paper_epsilon > epsilon
