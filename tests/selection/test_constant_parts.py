"""A part of the rows that is constant up to rounding has no spread: nothing is divided by 1e-17."""

import numpy as np
import pytest

from pactune.selection import ForwardSelector
from pactune.selection.calibration import shuffled_moments
from pactune.selection.rows import standardize, validation_r2


def rows_with_one_positive(number, seed=0):
    """Return standardised rows of a target with a single positive row, which is in the training part."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(number, 4)), np.zeros((number, 1))
    y[0] = 1.0
    half = number // 2
    return standardize(X[:half], y[:half], X[half:], y[half:])


@pytest.mark.parametrize("number", [12, 30, 50, 70, 100, 130])
def test_a_shuffle_without_a_positive_row_in_training_stays_finite_and_small(number):
    rows = rows_with_one_positive(number)
    moments = shuffled_moments(rows, np.random.default_rng(0), 50)
    # With the positive row in the validation part the training part is constant. Targets then keep their scale.
    largest = np.abs(rows.train_target).max() + np.abs(rows.valid_target).max()
    bound = largest * np.abs(rows.valid).max()
    assert np.abs(moments.valid_cross).max() <= bound
    assert np.abs(moments.train_cross).max() <= bound


def test_a_shuffle_with_spread_is_scaled_by_it():
    rows = rows_with_one_positive(12)
    moments = shuffled_moments(rows, np.random.default_rng(0), 200)
    tripled = shuffled_moments(
        rows._replace(train_target=3 * rows.train_target, valid_target=3 * rows.valid_target),
        np.random.default_rng(0),
        200,
    )
    spread = np.abs(moments.train_cross).max(axis=(1, 2, 3)) > 1e-9  # the positive row is in the training part
    assert 50 < spread.sum() < 150
    np.testing.assert_allclose(tripled.train_cross[spread], moments.train_cross[spread], rtol=1e-12)


@pytest.mark.parametrize("valid", range(2, 25))
def test_r2_of_a_constant_validation_part_is_not_a_number(valid):
    """The mean of equal values is off by rounding for many numbers of rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10 + valid, 3))
    y = np.concatenate([rng.normal(size=10), np.full(valid, 0.1)])[:, None]
    rows = standardize(X[:10], y[:10], X[10:], y[10:])
    assert np.isnan(validation_r2(rows, [0]))


def test_auto_beta_with_one_positive_row():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(50, 3)), np.zeros(50)
    y[7] = 1.0
    selector = ForwardSelector(beta="auto", random_state=0).fit(X, y)
    assert np.isfinite(selector.path_["objective"]).all()
