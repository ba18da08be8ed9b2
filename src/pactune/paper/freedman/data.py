"""The data of Freedman's paradox: many features, two or no true ones; choosing features overfits the validation set.

Two versions of the paper's section 4.1: with two true predictors, y = (x_1 + x_2 + 2ξ)/√6, and with none. The authors'
script builds the test labels of the second version from the model of the first. Here they are noise, like its
training labels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pactune.extras import require
from pactune.selection.moments import Array

__all__ = ["TRUE_FEATURES", "FreedmanData", "freedman_data", "held_out_error"]

TRUE_FEATURES = (0, 1)


class FreedmanData(NamedTuple):
    """One draw of the problem; features are standard normal and targets have variance 1."""

    train: Array
    train_target: Array
    valid: Array
    valid_target: Array
    test: Array
    test_target: Array


def freedman_data(
    seed: int, *, null: bool = False, rows: int = 500, features: int = 500, test_rows: int = 5000
) -> FreedmanData:
    """Draw the problem: half of the rows to train, half to validate, and fresh rows to test.

    Args:
        seed: seed of the draw.
        null: True for no true predictor, False for two.
        rows: training and validation rows together.
        features: number of features.
        test_rows: rows that no selection sees.
    """
    rng = np.random.default_rng(seed)
    columns = rng.standard_normal((rows, features))
    target = _target(columns, rng, null=null)
    test = rng.standard_normal((test_rows, features))
    half = rows // 2
    parts = (columns[:half], target[:half], columns[half:], target[half:], test, _target(test, rng, null=null))
    return FreedmanData(*parts)


def _target(columns: Array, rng: np.random.Generator, *, null: bool) -> Array:
    noise = rng.standard_normal(len(columns))
    return noise if null else (columns[:, list(TRUE_FEATURES)].sum(axis=1) + 2.0 * noise) / math.sqrt(6.0)


def held_out_error(data: FreedmanData, subset: list[int], *, refit: bool) -> float:
    """Return the mean squared test error of least squares on a subset of the features.

    Args:
        data: the problem.
        subset: columns of the model; an empty subset predicts the mean.
        refit: fit to training and validation rows, as one does with a final model; False takes training rows only.
    """
    columns = np.concatenate([data.train, data.valid]) if refit else data.train
    target = np.concatenate([data.train_target, data.valid_target]) if refit else data.train_target
    if not subset:
        return float(np.mean((data.test_target - target.mean()) ** 2))
    model = require("sklearn.linear_model").LinearRegression().fit(columns[:, subset], target)
    return float(np.mean((data.test_target - model.predict(data.test[:, subset])) ** 2))
