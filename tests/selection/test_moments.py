"""The exact moments against the slow iteration, against Monte-Carlo chains, and in limits that are known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pactune.selection.moments import LangevinPath, SecondMoments, exact_moments
from pactune.selection.monte_carlo import langevin_chains
from pactune.selection.rows import second_moments, standardize
from tests.selection.iterated_moments import iterated_moments

RELATIVE = 1e-10


def random_moments(seed, *, features, outputs=1, rows=40, shared=0.0):
    rng = np.random.default_rng(seed)
    columns = math.sqrt(1 - shared) * rng.normal(size=(2, rows, features))
    columns += math.sqrt(shared) * rng.normal(size=(2, rows, 1))
    targets = columns[:, :, :1] + rng.normal(size=(2, rows, outputs))
    return second_moments(standardize(columns[0], targets[0], columns[1], targets[1]), list(range(features)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    features=st.integers(1, 8),
    outputs=st.integers(1, 3),
    steps=st.integers(1, 200),
    inverse_temperature=st.sampled_from([0.5, 25.0, 1e4, math.inf]),
    shared=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_closed_form_equals_iteration(seed, features, outputs, steps, inverse_temperature, shared):
    moments = random_moments(seed, features=features, outputs=outputs, shared=shared)
    path = LangevinPath(steps=steps, inverse_temperature=inverse_temperature, start_scale=0.7)
    exact, slow = exact_moments(moments, path), iterated_moments(moments, path)
    assert exact.risk == pytest.approx(slow.risk, rel=RELATIVE)
    assert exact.incoherence == pytest.approx(slow.incoherence, rel=RELATIVE)


def test_batch_equals_one_by_one():
    models = [random_moments(seed, features=4) for seed in range(5)]
    stacked = SecondMoments(*(np.stack(parts) for parts in list(zip(*models, strict=True))[:4]), models[0].valid_power)
    path = LangevinPath(inverse_temperature=25.0)
    together = exact_moments(stacked, path)
    alone = [exact_moments(model._replace(valid_power=models[0].valid_power), path) for model in models]
    np.testing.assert_allclose(together.risk, [one.risk for one in alone], rtol=1e-13)
    np.testing.assert_allclose(together.incoherence, [one.incoherence for one in alone], rtol=1e-13)


@pytest.mark.parametrize("features", [1, 2, 4, 20])
def test_monte_carlo_agrees_within_its_standard_error(features):
    chains = 4000
    moments = random_moments(features, features=features, rows=250)
    path = LangevinPath(inverse_temperature=25.0)
    exact = exact_moments(moments, path)
    sampled = langevin_chains(moments, path, chains=chains, generator=np.random.default_rng(7))
    for name in ("risk", "incoherence"):
        values = getattr(sampled, name)
        standard_error = values.std(ddof=1) / math.sqrt(chains)
        # 3.5 standard errors: eight comparisons with a fixed seed, p < 0.004 together if the closed form is right.
        assert abs(values.mean() - getattr(exact, name)) < 3.5 * standard_error


def test_without_noise_the_end_is_the_least_squares_fit():
    rng = np.random.default_rng(0)
    train, valid, target, valid_target = (rng.normal(size=(60, width)) for width in (3, 3, 1, 1))
    rows = standardize(train, target, valid, valid_target)
    coefficients = np.linalg.lstsq(rows.train, rows.train_target, rcond=None)[0]
    expected = np.mean((rows.valid_target - rows.valid @ coefficients) ** 2)
    found = exact_moments(second_moments(rows, [0, 1, 2]), LangevinPath(steps=5000))
    assert found.risk == pytest.approx(expected, rel=1e-10)


def test_same_rows_on_both_sides_have_no_incoherence():
    moments = random_moments(3, features=3)
    same = moments._replace(valid_gram=moments.train_gram, valid_cross=moments.train_cross)
    assert exact_moments(same, LangevinPath(inverse_temperature=10.0)).incoherence == pytest.approx(0.0, abs=1e-12)


def test_one_feature_costs_about_the_temperature():
    """The noise alone adds tr(Σ_V)/τ · 1/(1 − η/2) to the risk of a useless feature: 0.042 at τ = 25."""
    one, none = np.ones((1, 1)), np.zeros((1, 1))
    moments = SecondMoments(one, one, none, none, np.ones(1))
    cost = exact_moments(moments, LangevinPath(inverse_temperature=25.0, steps=500)).risk - 1.0
    assert cost == pytest.approx(1 / 25.0 / (1 - 0.05), rel=1e-9)
