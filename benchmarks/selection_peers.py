"""Forward selection beside other selectors on Freedman's problem and on three real tables that scikit-learn ships.

    pip install 'pactune[peers]'
    python benchmarks/selection_peers.py [--seeds 5] [--output benchmarks/results/selection-peers.json]

A peer that is not installed is left out with the reason. The chosen features are refitted by least squares on all rows
the selector saw; the error is that on rows nobody saw.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.linear_model import LassoCV, LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split

from pactune.paper.freedman.data import TRUE_FEATURES, freedman_data, held_out_error
from pactune.selection import ForwardSelector

Select = Callable[[np.ndarray, np.ndarray, int], list[int]]


def forward(**settings: Any) -> Select:
    def select(columns: np.ndarray, target: np.ndarray, seed: int) -> list[int]:
        # Freedman's rows are exchangeable, so the first half trains and the second validates, as in the study.
        half = len(columns) // 2
        selector = ForwardSelector(random_state=seed, max_features=20, **settings)
        return selector.fit(columns[:half], target[:half], columns[half:], target[half:]).order_.tolist()

    return select


def sequential(columns: np.ndarray, target: np.ndarray, _seed: int) -> list[int]:
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select="auto", tol=0.02, cv=5)
    return np.flatnonzero(selector.fit(columns, target).get_support()).tolist()


def lasso(columns: np.ndarray, target: np.ndarray, seed: int) -> list[int]:
    scaled = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return np.flatnonzero(LassoCV(cv=5, random_state=seed).fit(scaled, target).coef_).tolist()


def abess_ebic(columns: np.ndarray, target: np.ndarray, _seed: int) -> list[int]:
    from abess import LinearRegression as BestSubset

    model = BestSubset(ic_type="ebic", support_size=range(min(21, columns.shape[1] + 1)))
    return np.flatnonzero(model.fit(columns, target).coef_).tolist()


def boruta(columns: np.ndarray, target: np.ndarray, seed: int) -> list[int]:
    from boruta import BorutaPy
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(max_depth=5, n_jobs=2, random_state=seed)
    selector = BorutaPy(forest, n_estimators=200, max_iter=50, random_state=seed)
    return np.flatnonzero(selector.fit(columns, target).support_).tolist()


def knockoffs(rate: float) -> Select:
    def select(columns: np.ndarray, target: np.ndarray, seed: int) -> list[int]:
        from knockpy import KnockoffFilter

        np.random.seed(seed)  # knockpy draws from the global generator
        chosen = KnockoffFilter(ksampler="gaussian", fstat="lasso").forward(
            X=columns, y=target, fdr=rate, shrinkage="ledoitwolf"
        )
        return np.flatnonzero(chosen).tolist()

    return select


# name: (selector, package it needs or None)
PEERS: dict[str, tuple[Select, str | None]] = {
    "pactune, pac-bayes": (forward(criterion="pac-bayes"), None),
    "pactune, pac-bayes, beta=1": (forward(criterion="pac-bayes", beta=1.0), None),
    "pactune, pac-bayes, beta=auto": (forward(criterion="pac-bayes", beta="auto"), None),
    "pactune, validation (Eq. 1)": (forward(criterion="validation"), None),
    "pactune, aic": (forward(criterion="aic"), None),
    "pactune, ebic (default)": (forward(criterion="ebic"), None),
    "SequentialFeatureSelector, cv=5, tol=0.02": (sequential, "scikit-learn"),
    "LassoCV": (lasso, "scikit-learn"),
    "abess, EBIC": (abess_ebic, "abess"),
    "Boruta": (boruta, "Boruta"),
    "knockoffs (knockpy), FDR 0.1": (knockoffs(0.1), "knockpy"),
    "knockoffs (knockpy), FDR 0.5": (knockoffs(0.5), "knockpy"),
}


# Minutes per fit: measured on fewer seeds, and not on the real tables.
SLOW = {"Boruta"}
SLOW_SEEDS = 1


def freedman_rows(select: Select, seeds: int, *, null: bool) -> dict[str, Any]:
    sizes, found, errors, taken = [], [], [], []
    for seed in range(seeds):
        data = freedman_data(seed, null=null)
        columns, target = (
            np.concatenate([data.train, data.valid]),
            np.concatenate([data.train_target, data.valid_target]),
        )
        start = time.perf_counter()
        chosen = select(columns, target, seed)
        taken.append(time.perf_counter() - start)
        sizes.append(len(chosen))
        found.append(len(set(chosen) & set(TRUE_FEATURES)))
        errors.append(held_out_error(data, chosen, refit=True))
    means = {"selected": np.mean(sizes), "test_mse": np.mean(errors), "seconds": np.mean(taken)}
    row = {name: float(value) for name, value in means.items()} | {"selected_per_seed": sizes}
    return row if null else row | {"true_found": float(np.mean(found))}


def real_tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Tables that come with scikit-learn; classes as numbers."""
    diabetes, cancer, wine = load_diabetes(scaled=False), load_breast_cancer(), load_wine()
    return {
        "diabetes": (diabetes.data, diabetes.target),
        "breast cancer": (cancer.data, cancer.target.astype(float)),
        "wine: alcohol": (wine.data[:, 1:], wine.data[:, 0]),
    }


def real_rows(select: Select, columns: np.ndarray, target: np.ndarray, splits: int) -> dict[str, float]:
    """Mean size and test R² over random halves."""
    sizes, scores = [], []
    for seed in range(splits):
        seen, new, seen_target, new_target = train_test_split(columns, target, test_size=0.5, random_state=seed)
        chosen = select(seen, seen_target, seed)
        guess = np.full(len(new), seen_target.mean())
        if chosen:
            guess = LinearRegression().fit(seen[:, chosen], seen_target).predict(new[:, chosen])
        sizes.append(len(chosen))
        scores.append(r2_score(new_target, guess))
    error = float(np.std(scores, ddof=1) / np.sqrt(splits))
    return {"selected": float(np.mean(sizes)), "test_r2": float(np.mean(scores)), "standard_error": error}


def measure(name: str, select: Select, package: str | None, seeds: int, splits: int) -> dict[str, Any]:
    try:
        used = version(package) if package else None
    except PackageNotFoundError:
        return {"skipped": f"{package} is not installed"}
    seeds = min(seeds, SLOW_SEEDS) if name in SLOW else seeds
    row: dict[str, Any] = {"package": f"{package} {used}" if package else "pactune", "seeds": seeds}
    row["two true"] = freedman_rows(select, seeds, null=False)
    row["null"] = freedman_rows(select, seeds, null=True)
    if name not in SLOW:
        row["real"] = {table: real_rows(select, *data, splits) for table, data in real_tables().items()}
    return row


def markdown(results: dict[str, Any]) -> str:
    """Both tables of the documentation, from the file's numbers."""
    lines = [
        "| method | seeds | features | true found | test MSE | seconds | null: features | null: test MSE |",
        "|---" * 8 + "|",
    ]
    real = ["| method | " + " | ".join(real_tables()) + " |", "|---" * (1 + len(real_tables())) + "|"]
    for name, row in results["peers"].items():
        if "skipped" in row:
            lines.append(f"| {name} | {row['skipped']} |" + " |" * 6)
            continue
        two, null = row["two true"], row["null"]
        lines.append(
            f"| {name} | {row['seeds']} | {two['selected']:.1f} | {two['true_found']:.1f} | {two['test_mse']:.3f} "
            f"| {two['seconds']:.2f} | {null['selected']:.1f} | {null['test_mse']:.3f} |"
        )
        if "real" in row:
            cells = (
                f"{cell['selected']:.1f} · {cell['test_r2']:.3f} ± {cell['standard_error']:.3f}"
                for cell in row["real"].values()
            )
            real.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *real])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--only", nargs="*", help="names to measure; the other rows are kept from the file")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "selection-peers.json")
    parser.add_argument("--markdown", action="store_true", help="print the tables of an earlier run and stop")
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())))
        return
    results: dict[str, Any] = {"seeds": options.seeds, "splits": options.splits, "peers": {}}
    if options.only and options.output.exists():
        results = json.loads(options.output.read_text())
    warnings.filterwarnings("ignore")
    for name, (select, package) in PEERS.items():
        if options.only and name not in options.only:
            continue
        row = results["peers"][name] = measure(name, select, package, options.seeds, options.splits)
        print(name, json.dumps(row), flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
