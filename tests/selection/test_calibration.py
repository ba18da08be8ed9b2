"""Choosing β from the rows at hand."""

import numpy as np
import pytest

from pactune.selection import ForwardSelector
from pactune.selection.calibration import ShuffleCalibration, calibrated_beta, false_selection_rates, theory_zeta
from pactune.selection.forward import forward_path
from pactune.selection.moments import LangevinPath
from pactune.selection.pac_bayes import PathScore
from pactune.selection.rows import standardize


def noise_rows(seed, rows=100, features=80, outputs=1):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(rows, features)), rng.normal(size=(rows, outputs))
    half = rows // 2
    return standardize(X[:half], y[:half], X[half:], y[half:])


def test_rates_fall_with_the_temperature():
    betas = (0.01, 0.1, 1.0)
    rates = false_selection_rates(
        noise_rows(0), LangevinPath(), np.random.default_rng(0), ShuffleCalibration(betas=betas)
    )
    assert rates[0] <= rates[1] <= rates[2]
    assert rates[0] == 0.0
    assert rates[2] > 0.1


def test_rate_is_that_of_fresh_noise():
    """Shuffling one data set and drawing new ones must select alike: 0.5 % against 95 % would be a bug."""
    beta, draws = 1.0, 150
    settings = ShuffleCalibration(betas=(beta,), shuffles=draws)
    shuffled = false_selection_rates(noise_rows(0), LangevinPath(), np.random.default_rng(0), settings)[0]
    criterion = PathScore(zeta=theory_zeta(beta, 0.1), path=LangevinPath(inverse_temperature=50 * beta))
    paths = [forward_path(noise_rows(seed), criterion, max_features=1) for seed in range(1, draws + 1)]
    fresh = np.mean([path[1].objective < path[0].objective for path in paths])
    # Two rates near 0.4 from 150 draws each: their difference has a standard error of 0.057.
    assert shuffled == pytest.approx(fresh, abs=3 * 0.057)


def test_chosen_beta_keeps_the_level():
    settings = ShuffleCalibration(level=0.05)
    rows = noise_rows(3)
    beta = calibrated_beta(rows, LangevinPath(), np.random.default_rng(0), max_features=5, settings=settings)
    rates = false_selection_rates(rows, LangevinPath(), np.random.default_rng(0), settings)
    assert rates[settings.betas.index(beta)] <= 0.05


def test_smallest_value_is_taken_when_none_keeps_the_level():
    settings = ShuffleCalibration(betas=(5.0, 10.0), level=0.0)
    rows = noise_rows(3)
    assert calibrated_beta(rows, LangevinPath(), np.random.default_rng(0), max_features=3, settings=settings) == 5.0


def test_auto_in_the_selector():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 40))
    y = X[:, 5] + rng.normal(size=200)
    selector = ForwardSelector(criterion="pac-bayes", beta="auto", random_state=0).fit(X, y)
    assert list(selector.order_) == [5]
    assert selector.beta_ in ShuffleCalibration().betas
