"""Predictions as estimators, for scorers of scikit-learn: row numbers in, predictions out."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from torch import Tensor

__all__ = ["PredictedClasses", "PredictedNumbers", "scores_numbers"]


class PredictedClasses(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose scores for every row are known. One column is the logit of class 1.

    Args:
        scores: the outputs of a model. Shape (rows, classes) or (rows, 1) or (rows,).
    """

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        columns = scores.double().reshape(len(scores), -1).numpy()
        self._columns = np.hstack([np.zeros_like(columns), columns]) if columns.shape[1] == 1 else columns
        self.classes_ = np.arange(self._columns.shape[1])

    def predict_proba(self, rows: Any) -> Any:
        """Return the softmax of the scores."""
        chosen = self._columns[np.ravel(rows)]
        powers = np.exp(chosen - chosen.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def decision_function(self, rows: Any) -> Any:
        """Return the scores; with two classes, that of the second minus that of the first."""
        chosen = self._columns[np.ravel(rows)]
        return chosen[:, 1] - chosen[:, 0] if chosen.shape[1] == 2 else chosen

    def predict(self, rows: Any) -> Any:
        """Return the class with the largest score."""
        return self._columns[np.ravel(rows)].argmax(1)


class PredictedNumbers(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A regressor whose predictions for every row are known.

    Args:
        numbers: the outputs of a model.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def predict(self, rows: Any) -> Any:
        """Return the predictions."""
        found = self.numbers.double().numpy()[np.ravel(rows)]
        return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def scores_numbers(scorer: Any) -> bool:
    """Return True if a scorer of scikit-learn scores numbers, False if it scores classes.

    A scorer does not say what it scores, so it is tried on numbers that are no classes: scorers of classes refuse them,
    and those of clusters warn.
    """
    numbers = torch.tensor([0.5, 1.5, 2.7], dtype=torch.float64, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UserWarning)
        try:
            scorer(PredictedNumbers(numbers), np.arange(3).reshape(-1, 1), numbers.numpy())
        except Exception:  # scorers refuse with errors of several kinds
            return False
    return True
