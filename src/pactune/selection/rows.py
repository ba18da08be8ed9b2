"""Training and validation rows, centred and scaled by the means and deviations of the training rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pactune.selection.moments import Array, SecondMoments

__all__ = ["Rows", "location", "pool", "second_moments", "standardize", "validation_r2"]

# A column whose spread is below this share of its size is constant up to rounding.
_CONSTANT = 1e-12


class Rows(NamedTuple):
    """Standardised rows of both parts.

    Attributes:
        train: features of the training rows, shape `(n_T, p)`.
        train_target: shape `(n_T, q)`.
        valid: features of the validation rows, shape `(n_V, p)`.
        valid_target: shape `(n_V, q)`.
        usable: True for features that vary on the training rows, shape `(p,)`.
    """

    train: Array
    train_target: Array
    valid: Array
    valid_target: Array
    usable: NDArray[np.bool_]


def standardize(train: Array, train_target: Array, valid: Array, valid_target: Array) -> Rows:
    """Centre and scale features and targets by the training rows' means and standard deviations.

    A column that is constant on the training rows becomes zero and is not usable. A constant target is centred only.
    """
    centre, scale = location(train, train)
    target_centre, target_scale = location(train_target, train_target)
    usable = scale > 0.0
    divisor, target_divisor = np.where(usable, scale, 1.0), np.where(target_scale > 0.0, target_scale, 1.0)
    return Rows(
        train=np.where(usable, (train - centre) / divisor, 0.0),
        train_target=(train_target - target_centre) / target_divisor,
        valid=np.where(usable, (valid - centre) / divisor, 0.0),
        valid_target=(valid_target - target_centre) / target_divisor,
        usable=usable,
    )


def pool(rows: Rows) -> Rows:
    """Return all rows both as training and as validation rows, for criteria that need no validation part."""
    features = np.concatenate([rows.train, rows.valid])
    target = np.concatenate([rows.train_target, rows.valid_target])
    return standardize(features, target, features, target)


def second_moments(rows: Rows, subset: list[int]) -> SecondMoments:
    """Return the second moments of the linear model on one subset of the features."""
    train, valid = rows.train[:, subset], rows.valid[:, subset]
    return SecondMoments(
        train_gram=train.T @ train / len(train),
        valid_gram=valid.T @ valid / len(valid),
        train_cross=train.T @ rows.train_target / len(train),
        valid_cross=valid.T @ rows.valid_target / len(valid),
        valid_power=np.mean(rows.valid_target**2, axis=0),
    )


def validation_r2(rows: Rows, subset: list[int]) -> float:
    """Return R² on the validation rows of the least-squares fit to the training rows, all outputs together."""
    _, scale = location(rows.valid_target, np.concatenate([rows.train_target, rows.valid_target]))
    spread = len(rows.valid_target) * np.sum(scale**2)
    if spread == 0.0:
        return float("nan")
    coefficients = np.linalg.lstsq(rows.train[:, subset], rows.train_target, rcond=None)[0]
    residual = rows.valid_target - rows.valid[:, subset] @ coefficients
    return float(1.0 - np.sum(residual**2) / spread)


def location(values: Array, all_values: Array) -> tuple[Array, Array]:
    """Return the mean and standard deviation of each column; a deviation within rounding counts as zero.

    Args:
        values: the rows, shape `(..., n, p)`.
        all_values: rows from which the size of a column is taken, shape `(..., m, p)`.
    """
    centre, scale = values.mean(axis=-2), values.std(axis=-2)
    return centre, np.where(scale > _CONSTANT * np.abs(all_values).max(axis=-2), scale, 0.0)
