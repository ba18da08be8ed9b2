"""How fast forward selection is: exact moments, Monte-Carlo chains in plain NumPy, and scikit-learn, in one run.

    python benchmarks/selection.py [--output benchmarks/results/selection.json]

Everything is measured here and now; what is extrapolated from a part says so, with the part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import PredefinedSplit

from pactune.paper.freedman.data import FreedmanData, freedman_data
from pactune.selection import ForwardSelector

SELECTED = 20
FEATURES = 500
ROWS = 500


def seconds(call: Callable[[], Any], *, repeats: int = 5) -> float:
    """Median of several timings after one that warms up."""
    call()
    timings = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        timings.append(time.perf_counter() - start)
    return float(np.median(timings))


def fit(data: FreedmanData, selected: int = SELECTED, **settings: Any) -> ForwardSelector:
    settings = {"criterion": "pac-bayes"} | settings
    selector = ForwardSelector(n_features_to_select=selected, random_state=0, **settings)
    return selector.fit(data.train, data.train_target, data.valid, data.valid_target)


def plain_chains(data: FreedmanData, subset: list[int], rng: np.random.Generator) -> float:
    """Eq. 5 of one model the straightforward way: 50 chains of 50 steps, gradients from the rows."""
    rate, beta, chains, steps = 0.1, 0.1, 50, 50
    train, valid = data.train[:, subset], data.valid[:, subset]
    theta = rng.standard_normal((len(subset), chains))
    scale = np.sqrt(2 * rate / (beta * len(train)))
    incoherence = np.zeros(chains)
    for _ in range(steps):
        train_gradient = train.T @ (train @ theta - data.train_target[:, None]) / len(train)
        valid_gradient = valid.T @ (valid @ theta - data.valid_target[:, None]) / len(valid)
        incoherence += ((train_gradient - valid_gradient) ** 2).sum(axis=0)
        theta = theta - rate * train_gradient + scale * rng.standard_normal(theta.shape)
    risk = ((valid @ theta - data.valid_target[:, None]) ** 2).mean()
    return float(risk + np.sqrt(beta * rate / 4 * incoherence.mean()))


def plain_chains_seconds(data: FreedmanData) -> dict[str, Any]:
    """Time a few candidates of every model size and extrapolate to all candidates."""
    rng, sample = np.random.default_rng(0), 5
    total = 0.0
    for size in range(1, SELECTED + 1):
        per_model = seconds(partial(plain_chains, data, list(range(size)), rng), repeats=sample)
        total += per_model * (FEATURES - size + 1)
    return {"seconds": total, "extrapolated_from": f"{sample} candidates of each of the {SELECTED} sizes"}


def sequential_seconds(data: FreedmanData) -> dict[str, Any]:
    """Time scikit-learn's forward selector on the same split, on a part of the sizes, and extrapolate."""
    columns = np.concatenate([data.train, data.valid])
    target = np.concatenate([data.train_target, data.valid_target])
    split = PredefinedSplit(np.repeat([-1, 0], [len(data.train), len(data.valid)]))
    part = 4
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=part, cv=split, scoring="neg_mean_squared_error"
    )
    start = time.perf_counter()
    selector.fit(columns, target)
    taken = time.perf_counter() - start
    models, all_models = (sum(FEATURES - size for size in range(count)) for count in (part, SELECTED))
    return {"seconds": taken * all_models / models, "extrapolated_from": f"the first {part} features ({taken:.1f} s)"}


def growth() -> dict[str, list[dict[str, float]]]:
    """Seconds of exact selection when one of features, rows and selected features grows, the others fixed."""

    def cost(features: int = FEATURES, rows: int = ROWS, selected: int = SELECTED) -> dict[str, float]:
        data = freedman_data(0, rows=rows, features=features, test_rows=10)
        taken = seconds(lambda: fit(data, selected), repeats=3)
        return {"features": features, "rows": rows, "selected": selected, "seconds": taken}

    def with_steps(steps: int) -> dict[str, float]:
        return {"steps": steps, "seconds": seconds(lambda: fit(freedman_data(0, test_rows=10), steps=steps))}

    return {
        "features": [cost(features=count) for count in (125, 250, 500, 1000, 2000, 4000)],
        "rows": [cost(rows=count) for count in (250, 500, 1000, 4000, 16000)],
        "selected": [cost(selected=count) for count in (5, 10, 20, 40, 80)],
        "steps": [with_steps(count) for count in (50, 500, 5000)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "selection.json")
    output = parser.parse_args().output
    data = freedman_data(0, test_rows=10)
    timed: dict[str, dict[str, Any]] = {
        "exact": {"seconds": seconds(lambda: fit(data))},
        "exact, beta auto": {"seconds": seconds(lambda: fit(data, beta="auto"), repeats=2)},
        "validation": {"seconds": seconds(lambda: fit(data, criterion="validation"))},
        "ebic": {"seconds": seconds(lambda: fit(data, criterion="ebic"))},
        "monte-carlo, all candidates at once": {"seconds": seconds(lambda: fit(data, method="monte-carlo"), repeats=1)},
        "monte-carlo, plain NumPy loop": plain_chains_seconds(data),
        "scikit-learn SequentialFeatureSelector": sequential_seconds(data),
    }
    for name, row in timed.items():
        row["ratio_to_exact"] = row["seconds"] / timed["exact"]["seconds"]
        part = f"  (extrapolated from {row['extrapolated_from']})" if "extrapolated_from" in row else ""
        print(f"{name:40} {row['seconds']:10.3f} s {row['ratio_to_exact']:8.1f} x{part}", flush=True)
    grown = growth()
    for name, rows in grown.items():
        print(f"growth with {name}: " + ", ".join(f"{row[name]}: {row['seconds']:.3f} s" for row in rows))
    machine = {
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
    problem = {"selected": SELECTED, "features": FEATURES, "rows": "250 + 250"}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        json.dumps({"problem": problem, "machine": machine, "timed": timed, "growth": grown}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
