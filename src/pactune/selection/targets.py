"""Turn targets into columns of numbers for a least-squares fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pactune.errors import DataError
from pactune.selection.moments import Array

__all__ = ["is_label_target", "target_columns"]


def is_label_target(target: NDArray[Any]) -> bool:
    """Return True if the target holds labels (text, booleans, objects) rather than numbers."""
    return np.asarray(target).dtype.kind not in "iuf"


def target_columns(target: NDArray[Any], *, task: str) -> tuple[Array, NDArray[np.intp] | None]:
    """Turn a target into columns of numbers, and for classification also into class indices.

    Two classes become one column of −1 and 1; more classes become one column of 0 and 1 per class. The linear model is
    fitted to these columns by least squares, and the mean squared errors of the columns are added.

    Args:
        target: shape `(n,)`.
        task: `"regression"`, `"classification"`, or `"auto"`, which treats numbers as regression.

    Returns:
        Columns of shape `(n, q)`, and the class index of every row or None for regression.

    Raises:
        DataError: the target has labels in a regression, or one class or too many classes in a classification.
    """
    if task == "regression" or (task == "auto" and not is_label_target(target)):
        return _numbers(target)[:, None], None
    classes, index = np.unique(target, return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"`y` must hold at least two classes for classification, got 1 class: {classes[0]!r}")
    if len(classes) > max(2, len(target) // 2):
        raise DataError(
            f"`y` has {len(classes)} different values in {len(target)} rows, too many for classes; encode it as "
            "numbers and use task='regression'"
        )
    if len(classes) == 2:
        return np.where(index == 1, 1.0, -1.0)[:, None], index
    return (index[:, None] == np.arange(len(classes))).astype(np.float64), index


def _numbers(target: NDArray[Any]) -> Array:
    try:
        return np.asarray(target, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            "`y` must hold numbers for task='regression', got labels; use task='classification' or 'auto'"
        ) from error
