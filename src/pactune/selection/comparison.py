"""How well chosen features predict new rows, beside all features, by repeated cross-validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pactune.errors import DataError, SettingError

__all__ = ["FeatureComparison", "PredictionScore", "compare_with_all"]

_FOLDS = 5


class PredictionScore(NamedTuple):
    """The prediction of new rows with some features.

    Attributes:
        score: mean over the repetitions.
        per_repeat: the score of each repetition.
        features: mean number of features over all folds.
    """

    score: float
    per_repeat: list[float]
    features: float


class FeatureComparison(NamedTuple):
    """Chosen features beside all features on rows that took no part in the choice or the fit.

    Attributes:
        metric: `"R²"` or `"accuracy"`.
        model: the name of the model that predicts.
        folds: number of folds of a repetition.
        chosen: the prediction with features chosen anew on the training rows of each fold.
        all_features: the prediction with every feature.
    """

    metric: str
    model: str
    folds: int
    chosen: PredictionScore
    all_features: PredictionScore


class _Repetition(NamedTuple):
    chosen: float
    all_features: float
    features: float


def compare_with_all(selector: Any, X: ArrayLike, y: ArrayLike, *, task: str, repeats: int = 5) -> FeatureComparison:
    """Cross-validate a selector followed by a linear model, and the same model on all features.

    The model is ridge regression with a strength chosen on the training rows, or logistic regression, on standardised
    columns. A repetition splits the rows into five folds at random and predicts each row by a model that did not see
    it; its score is that of all rows together. The folds are the same at every call.

    Args:
        selector: a scikit-learn selector; copies of it are fitted to the training rows of each fold.
        X: features, shape `(n, p)`.
        y: target, shape `(n,)`.
        task: `"regression"` (R²) or `"classification"` (accuracy).
        repeats: number of repetitions.

    Returns:
        Both scores.

    Raises:
        SettingError: `task` or `repeats` breaks its rule.
        DataError: there are fewer than five rows.

    Example:
        >>> from pactune.selection import ForwardSelector
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((60, 40))
        >>> y = X[:, 3] - X[:, 7] + rng.standard_normal(60)
        >>> found = compare_with_all(ForwardSelector(), X, y, task="regression")
        >>> found.metric, found.chosen.score > found.all_features.score
        ('R²', True)
    """
    _check(len(np.asarray(y)), task, repeats)
    columns = np.asarray(X, dtype=np.float64)
    # Classes become their indices, since scikit-learn refuses fractions such as 1.5 as labels.
    target = np.unique(y, return_inverse=True)[1] if task == "classification" else np.asarray(y, dtype=np.float64)
    found = [_repetition(selector, columns, target, task, seed) for seed in range(repeats)]
    chosen, everything, features = (list(part) for part in zip(*found, strict=True))
    return FeatureComparison(
        metric="accuracy" if task == "classification" else "R²",
        model="logistic regression" if task == "classification" else "ridge regression",
        folds=_FOLDS,
        chosen=PredictionScore(float(np.mean(chosen)), chosen, float(np.mean(features))),
        all_features=PredictionScore(float(np.mean(everything)), everything, float(columns.shape[1])),
    )


def _check(rows: int, task: str, repeats: int) -> None:
    if task not in {"regression", "classification"}:
        raise SettingError(f"`task` must be 'regression' or 'classification', got {task!r}")
    if repeats < 1:
        raise SettingError(f"`repeats` must be at least 1, got {repeats}")
    if rows < _FOLDS:
        raise DataError(f"`X` must have at least {_FOLDS} rows for cross-validation, got {rows}")


def _repetition(selector: Any, X: NDArray[np.float64], y: NDArray[Any], task: str, seed: int) -> _Repetition:
    """Predict each row once with the chosen features and once with all of them."""
    chosen, everything, sizes = np.empty_like(y), np.empty_like(y), []
    for train, test in _folds(X, y, task, seed):
        columns = _choose(selector, X[train], y[train])
        sizes.append(len(columns))
        chosen[test] = _predict(task, X[train][:, columns], y[train], X[test][:, columns])
        everything[test] = _predict(task, X[train], y[train], X[test])
    score = accuracy_score if task == "classification" else r2_score
    return _Repetition(float(score(y, chosen)), float(score(y, everything)), float(np.mean(sizes)))


def _folds(
    X: NDArray[np.float64], y: NDArray[Any], task: str, seed: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield training and test rows; folds are stratified if every class has a row for each."""
    stratified = task == "classification" and np.unique(y, return_counts=True)[1].min() >= _FOLDS
    splitter = StratifiedKFold if stratified else KFold
    yield from splitter(_FOLDS, shuffle=True, random_state=seed).split(X, y)


def _choose(selector: Any, X: NDArray[np.float64], y: NDArray[Any]) -> NDArray[np.intp]:
    if len(np.unique(y)) < 2:
        return np.zeros(0, dtype=np.intp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit to all rows has warned already
        mask = clone(selector).fit(X, y).get_support()
    return np.flatnonzero(mask)


def _predict(task: str, X: NDArray[np.float64], y: NDArray[Any], new: NDArray[np.float64]) -> NDArray[Any]:
    """Fit the model and predict new rows; without a feature or with one class it predicts a constant."""
    constant = X.shape[1] == 0 or len(np.unique(y)) < 2
    if task == "classification":
        model = DummyClassifier() if constant else LogisticRegression(max_iter=1000)
    else:
        model = DummyRegressor() if constant else RidgeCV(alphas=np.logspace(-3, 3, 13))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guess: NDArray[Any] = make_pipeline(_scaler(constant), model).fit(X, y).predict(new)
    return guess


def _scaler(constant: bool) -> Any:
    return "passthrough" if constant else StandardScaler()
