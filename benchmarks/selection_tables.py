"""Which criterion of forward selection predicts best on ordinary tables, and how stable its choice is.

    python benchmarks/selection_tables.py [--output benchmarks/results/selection_tables.json]

Every method chooses features on the training rows of each fold; ridge or logistic regression on the chosen features
predicts the other rows (five repetitions of five-fold cross-validation). Stability is the mean Jaccard overlap of the
sets that five seeds choose on all rows. The default criterion of `ForwardSelector` is the one of
pactune's whose mean shortfall from the best of them is smallest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_friedman1,
    make_regression,
)
from sklearn.feature_selection import RFECV, SequentialFeatureSelector
from sklearn.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV
from sklearn.metrics import accuracy_score
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pactune.selection import ForwardSelector
from pactune.selection.comparison import compare_with_all
from pactune.selection.criteria import Scores
from pactune.selection.forward import best_size, forward_path
from pactune.selection.least_squares import ValidationScore
from pactune.selection.rows import Rows, standardize
from pactune.selection.targets import target_columns

SEEDS = range(5)


class Data(NamedTuple):
    """A table."""

    columns: np.ndarray
    target: np.ndarray
    task: str


def _table(pair: Any, task: str) -> Data:
    columns, target = pair
    return Data(columns, target, task)


def tables() -> dict[str, Data]:
    """Tables that scikit-learn ships, and drawn ones with a known share of useless columns."""
    regression, classes = "regression", "classification"
    wine = load_wine()
    wide = make_regression(60, 200, n_informative=3, noise=30.0, random_state=0)
    return {
        "diabetes": _table(load_diabetes(return_X_y=True), regression),
        "wine: alcohol": Data(wine.data[:, 1:], wine.data[:, 0], regression),
        "friedman1, 200 × 20": _table(make_friedman1(200, 20, noise=1.0, random_state=0), regression),
        "10 of 50 columns, 200 rows": _table(
            make_regression(200, 50, n_informative=10, noise=50.0, random_state=0), regression
        ),
        "3 of 200 columns, 60 rows": _table(wide, regression),
        "breast cancer": _table(load_breast_cancer(return_X_y=True), classes),
        "wine": Data(wine.data, wine.target, classes),
        "iris": _table(load_iris(return_X_y=True), classes),
        "6 of 40 columns, 300 rows": _table(
            make_classification(300, 40, n_informative=6, n_redundant=6, random_state=0), classes
        ),
        "digits": _table(load_digits(return_X_y=True), classes),
    }


class _FoldMean:
    """The mean validation risk over several splits, as a criterion."""

    def __init__(self, parts: list[Rows]) -> None:
        self.parts, self.score = parts, ValidationScore()

    def start(self, _rows: Rows) -> list[Any]:
        return [self.score.start(part) for part in self.parts]

    def empty(self, states: list[Any]) -> Scores:
        return self._mean([self.score.empty(state) for state in states])

    def scores(self, states: list[Any]) -> Scores:
        return self._mean([self.score.scores(state) for state in states])

    def extend(self, states: list[Any], feature: int) -> list[Any]:
        return [self.score.extend(state, feature) for state in states]

    def _mean(self, found: list[Scores]) -> Scores:
        return Scores(*(np.mean(part, axis=0) for part in zip(*found, strict=True)))


class FoldSelector(BaseEstimator):
    """Forward selection by cross-validation: a candidate for the default that the library does not ship."""

    def __init__(self, task: str = "regression", repeats: int = 1, random_state: int = 0) -> None:
        self.task, self.repeats, self.random_state = task, repeats, random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Choose features."""
        targets, classes = target_columns(y, task=self.task)
        splitter = KFold if classes is None else StratifiedKFold
        splits = [
            split
            for repeat in range(self.repeats)
            for split in splitter(5, shuffle=True, random_state=1000 * self.random_state + repeat).split(X, classes)
        ]
        parts = [standardize(X[a], targets[a], X[b], targets[b]) for a, b in splits]
        path = forward_path(parts[0], _FoldMean(parts), max_features=X.shape[1], patience=10)
        self.support_ = np.isin(
            np.arange(X.shape[1]), [step.feature for step in path[1 : best_size(path) + 1] if step.feature is not None]
        )
        return self

    def get_support(self) -> np.ndarray:
        """Return the mask of the chosen features."""
        return self.support_


class PeerSelector(BaseEstimator):
    """A scikit-learn selector around linear or logistic regression, on standardised columns."""

    def __init__(self, name: str = "rfe", task: str = "regression", random_state: int = 0) -> None:
        self.name, self.task, self.random_state = name, task, random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Choose features."""
        regression = self.task == "regression"
        model = LinearRegression() if regression else LogisticRegression(max_iter=1000)
        folds = (KFold if regression else StratifiedKFold)(5, shuffle=True, random_state=self.random_state)
        selector = (
            RFECV(model, cv=folds)
            if self.name == "rfe"
            else SequentialFeatureSelector(model, n_features_to_select="auto", tol=1e-3, cv=folds)
        )
        self.support_ = selector.fit(StandardScaler().fit_transform(X), y).get_support()
        return self

    def get_support(self) -> np.ndarray:
        """Return the mask of the chosen features."""
        return self.support_


class Method(NamedTuple):
    """A selector, and the tables on which it would take too long."""

    selector: BaseEstimator
    left_out: tuple[str, ...] = ()


METHODS = {
    "ebic": Method(ForwardSelector(criterion="ebic")),
    "pac-bayes": Method(ForwardSelector(criterion="pac-bayes")),
    "pac-bayes, beta=1": Method(ForwardSelector(criterion="pac-bayes", beta=1.0)),
    "pac-bayes, beta=auto": Method(ForwardSelector(criterion="pac-bayes", beta="auto")),
    "pac-bayes, zeta=0": Method(ForwardSelector(criterion="pac-bayes", zeta=0.0)),
    "validation": Method(ForwardSelector(criterion="validation")),
    "aic": Method(ForwardSelector(criterion="aic")),
    "forward, 5 folds": Method(FoldSelector()),
    "forward, 5 × 5 folds": Method(FoldSelector(repeats=5)),
    "SequentialFeatureSelector, cv=5": Method(
        PeerSelector("sequential"), ("digits", "10 of 50 columns, 200 rows", "3 of 200 columns, 60 rows")
    ),
    "RFECV, cv=5": Method(PeerSelector("rfe")),
}
# The methods among which the default is chosen: all of pactune's and cross-validation.
CANDIDATES = list(METHODS)[:9]
# The tables that were not drawn.
SHIPPED = ("diabetes", "wine: alcohol", "breast cancer", "wine", "iris", "digits")


def jaccard(sets: list[set[int]]) -> float:
    """Return the mean overlap of all pairs; two empty sets overlap fully."""
    pairs = itertools.combinations(sets, 2)
    return float(np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]))


def measure(method: Method, data: Data) -> dict[str, Any]:
    selector = clone(method.selector).set_params(task=data.task, random_state=0)
    start = time.perf_counter()
    selector.fit(data.columns, data.target)
    seconds = time.perf_counter() - start
    found = compare_with_all(selector, data.columns, data.target, task=data.task)
    fitted = (clone(selector).set_params(random_state=seed).fit(data.columns, data.target) for seed in SEEDS)
    sets = [set(np.flatnonzero(other.get_support()).tolist()) for other in fitted]
    return {
        "metric": found.metric,
        "score": found.chosen.score,
        "per_repeat": found.chosen.per_repeat,
        "features": found.chosen.features,
        "jaccard": jaccard(sets),
        "different_sets": len({frozenset(chosen) for chosen in sets}),
        "all_features": found.all_features.score,
        "seconds": seconds,
    }


def logistic_cv(data: Data, repeats: int = 5) -> float:
    """Return the accuracy of logistic regression on all columns with a strength chosen by inner folds."""
    model = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=5, cv=5, max_iter=1000))
    guesses = (
        cross_val_predict(model, data.columns, data.target, cv=StratifiedKFold(5, shuffle=True, random_state=seed))
        for seed in range(repeats)
    )
    return float(np.mean([accuracy_score(data.target, guess) for guess in guesses]))


def summary(found: dict[str, dict[str, Any]], names: list[str]) -> dict[str, dict[str, float]]:
    """Return each candidate's mean shortfall from the best candidate of a table, mean overlap and mean size."""
    best = {table: max(found[table]["methods"][name]["score"] for name in CANDIDATES) for table in names}
    rows = {}
    for name in CANDIDATES:
        cells = [found[table]["methods"][name] for table in names]
        short = [best[table] - cell["score"] for table, cell in zip(names, cells, strict=True)]
        rows[name] = {
            "mean_shortfall": float(np.mean(short)),
            "largest_shortfall": float(np.max(short)),
            "mean_jaccard": float(np.mean([cell["jaccard"] for cell in cells])),
            "mean_features": float(np.mean([cell["features"] for cell in cells])),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", help="tables to measure; the others are kept from the file")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "selection_tables.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    found: dict[str, dict[str, Any]] = {}
    if options.tables and options.output.exists():
        found = json.loads(options.output.read_text())["tables"]
    for table, data in tables().items():
        if options.tables and table not in options.tables:
            continue
        rows, columns = data.columns.shape
        entry: dict[str, Any] = {"task": data.task, "rows": rows, "columns": columns, "methods": {}}
        for name, method in METHODS.items():
            if table in method.left_out:
                continue
            cell = entry["methods"][name] = measure(method, data)
            if name == CANDIDATES[0]:
                entry["all_features"] = cell["all_features"]
            print(f"{table:28}{name:34}{cell['score']:7.3f}{cell['features']:7.1f}{cell['jaccard']:6.2f}", flush=True)
        if data.task == "classification":
            entry["all_features_logistic_cv"] = logistic_cv(data)
        found[table] = entry
    shipped = [table for table in found if table in SHIPPED]
    result: dict[str, Any] = {"seeds": len(SEEDS), "folds": 5, "tables": found, "summary": summary(found, list(found))}
    if shipped:
        result["summary_shipped"] = summary(found, shipped)
    for name, row in result["summary"].items():
        print(f"{name:34}" + "".join(f"{key} {value:.3f}  " for key, value in row.items()))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
