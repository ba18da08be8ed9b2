"""(ε, δ) of the Gaussian mechanism: golden values, properties, and the accountant of others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pactune.errors import SettingError
from pactune.privacy import (
    Privacy,
    classical_epsilon,
    compose,
    delta_of,
    draw_frontier,
    epsilon_of,
    frontier,
    frontier_curves,
    largest_step,
    mu_of,
)

mus, epsilons, deltas = st.floats(1e-3, 5), st.floats(0, 20), st.floats(1e-12, 0.3)
PAPER = largest_step(0.5, 1e-6, rows=30_000, batch_size=300, clip=1.0)


def test_golden_values() -> None:
    # analytic Gaussian mechanism at μ = 0.1, δ = 1e-5 (dp-accounting, autodp and prv-accountant agree)
    assert epsilon_of(1e-5, 0.1) == pytest.approx(0.34067, abs=1e-5)
    assert delta_of(1.0, 1.0) == pytest.approx(0.12693674, abs=1e-8)
    assert classical_epsilon(1e-5, 0.1) == pytest.approx(0.4845, abs=1e-4)


def test_the_papers_step_costs_more_than_it_says() -> None:
    """Theorem A.5 at s = 30k, h = 300, γ = 1, (0.5, 1e-6): the step it allows is 0.784-private, not 0.5."""
    assert PAPER.paper == pytest.approx(0.0534, abs=5e-5)
    assert PAPER.corrected == pytest.approx(0.0134, abs=5e-5)
    assert PAPER.exact == pytest.approx(0.0231, abs=5e-5)
    assert round(PAPER.paper_epsilon, 3) == 0.784
    assert Privacy(300, 1.0, PAPER.exact, 30_000).epsilon(1e-6) == pytest.approx(0.5, abs=1e-9)
    assert Privacy(300, 1.0, PAPER.corrected, 30_000).epsilon(1e-6) < 0.5


def test_agrees_with_dp_accounting() -> None:
    accounting = pytest.importorskip("dp_accounting", reason="optional extra `dp` (dp-accounting) is not installed")
    mu = Privacy(300, 1.0, PAPER.paper, 30_000).mu
    assert accounting.get_epsilon_gaussian(1 / mu, 1e-6) == pytest.approx(PAPER.paper_epsilon, abs=1e-3)
    for other in (0.05, 0.5, 2.0):
        for delta in (1e-8, 1e-4):
            assert accounting.get_epsilon_gaussian(1 / other, delta) == pytest.approx(
                epsilon_of(delta, other), abs=1e-3
            )
    pld = accounting.pld.PLDAccountant()
    pld.compose(accounting.GaussianDpEvent(1 / mu), 4)
    four = Privacy(300, 1.0, PAPER.paper, 30_000, chains=4)
    assert pld.get_epsilon(1e-6) == pytest.approx(four.epsilon(1e-6), abs=1e-3)


@given(mus, epsilons, epsilons)
def test_delta_falls_as_epsilon_grows(mu: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert delta_of(low, mu) >= delta_of(high, mu) - 1e-15


@given(mus, deltas)
def test_epsilon_satisfies_its_delta(mu: float, delta: float) -> None:
    epsilon = epsilon_of(delta, mu)
    assert delta_of(epsilon, mu) <= delta
    if epsilon > 1e-6:
        assert delta_of(epsilon * (1 - 1e-6), mu) > delta * (1 - 1e-4)


@given(st.floats(0.01, 5), deltas)
def test_mu_is_the_inverse(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta
    assert epsilon_of(delta, mu) == pytest.approx(epsilon, rel=1e-6)


def test_chains_compose_by_the_root_and_not_as_the_paper_says() -> None:
    one, nine = (Privacy(100, 1.0, 0.01, 1000, chains=c) for c in (1, 9))
    assert nine.mu == pytest.approx(3 * one.mu)
    assert compose([one.mu] * 9) == pytest.approx(nine.mu)
    assert nine.epsilon(9e-6) < 9 * one.epsilon(1e-6)


def test_frontier_is_a_frontier() -> None:
    privacy = Privacy(300, 1.0, PAPER.paper, 30_000)
    points = frontier(privacy, [1e-8, 1e-6, 1e-4])
    assert [p.delta for p in points] == [1e-8, 1e-6, 1e-4]
    assert points[0].epsilon > points[1].epsilon > points[2].epsilon
    curves = frontier_curves(privacy)
    middle = min(range(len(curves.delta)), key=lambda i: abs(math.log10(curves.delta[i]) + 6))
    assert curves.paper[middle] < curves.exact[middle] < curves.textbook[middle]
    axis = draw_frontier(privacy).axes[0]
    assert axis.lines[0].get_label() == "exact"


@pytest.mark.parametrize(("delta", "mu", "word"), [(0.0, 1.0, "delta"), (1e-5, -1.0, "mu"), (1e-5, math.nan, "mu")])
def test_wrong_numbers_are_refused(delta: float, mu: float, word: str) -> None:
    with pytest.raises(SettingError, match=f"`{word}` must be"):
        epsilon_of(delta, mu)
