"""The study of Freedman's paradox: all criteria on many data seeds, the paper's chains, and an ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pactune.paper.freedman.data import TRUE_FEATURES, FreedmanData, freedman_data, held_out_error
from pactune.paper.freedman.dynamics import chain_curves, expected_test_error
from pactune.paper.intervals import mean_interval, mean_intervals, share_interval
from pactune.selection import ForwardSelector

__all__ = ["FreedmanStudy", "run_study"]

# The selectors that run on every data seed: their names in the results, and their settings beside PAPER.
SELECTORS: dict[str, dict[str, Any]] = {
    "pac-bayes": {},
    "pac-bayes, beta 1": {"beta": 1.0},
    "pac-bayes, beta auto": {"beta": "auto"},
    "pac-bayes, zeta 0": {"zeta": 0.0},
    "validation": {"criterion": "validation"},
    "aic": {"criterion": "aic"},
    "ebic": {"criterion": "ebic"},
}
# The paper's criterion, which the settings above may replace.
PAPER: dict[str, Any] = {"criterion": "pac-bayes"}
# The selectors whose whole path enters the figures.
DRAWN = ("pac-bayes", "validation", "aic")


@dataclass(frozen=True)
class FreedmanStudy:
    """Settings of the study.

    Attributes:
        null: True for no true predictor, False for two.
        seeds: number of data seeds, which count from 0.
        rate_seeds: number of data seeds for the success rate of the paper's selector alone.
        max_features: length of every path.
        chains: Monte-Carlo chains of the paper's figures, drawn on data seed 0.
        betas: ablation over β; each with ζ = 0, ζ² = βη/4 and ζ² = `fixed_zeta_squared`.
        fixed_zeta_squared: the value that the paper prints, η/4.
        rows, features, test_rows: size of the problem.
    """

    null: bool = False
    seeds: int = 20
    rate_seeds: int = 500
    max_features: int = 20
    chains: int = 50
    betas: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, math.inf)
    fixed_zeta_squared: float = 0.025
    rows: int = 500
    features: int = 500
    test_rows: int = 5000

    @classmethod
    def quick(cls, *, null: bool) -> FreedmanStudy:
        """Return a small version on the same problem, to see that everything works."""
        return cls(null=null, seeds=3, rate_seeds=10, max_features=10, betas=(0.1, 1.0))

    def data(self, seed: int) -> FreedmanData:
        """Draw the problem of one seed."""
        size = {"rows": self.rows, "features": self.features, "test_rows": self.test_rows}
        return freedman_data(seed, null=self.null, **size)

    def settings(self) -> dict[str, Any]:
        """Settings as JSON can hold them: infinity as text."""
        return {**asdict(self), "betas": [_number_or_text(beta) for beta in self.betas]}


def run_study(
    study: FreedmanStudy,
    *,
    record: Callable[..., None] = lambda *_, **__: None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Run the study and gather its results as plain numbers.

    Args:
        study: the settings.
        record: called with the kind and the fields of each new result, for the journal.
        progress: called with the name of the present part, its number of steps done, and of all its steps.

    Returns:
        The content of `results.json`.
    """
    seeds = []
    for seed in range(study.seeds):
        progress("data seeds", seed, study.seeds)
        seeds.append(_run_seed(study, seed))
        record("seed", **seeds[-1])
    progress("chains", 0, 1)
    data = study.data(0)
    chains = chain_curves(data, _fit(study, data, {"method": "monte-carlo", "chains": study.chains}))
    record("chains", **chains)
    rate = _success_rate(study, progress)
    record("rate", **rate)
    selection = {name: _selection_summary(study, [row["selection"][name] for row in seeds]) for name in SELECTORS}
    return {
        "settings": study.settings(),
        "selection": selection,
        "test_mse_below_validation": {name: _wins(selection, name) for name in SELECTORS},
        "rate": rate,
        "correlation": {name: _correlation_summary([row["paths"][name] for row in seeds]) for name in DRAWN},
        "ablation": _ablation_summary(study, [row["ablation"] for row in seeds]),
        "paths": {name: _path_summary([row["paths"][name] for row in seeds]) for name in DRAWN},
        "first": seeds[0]["paths"],
        "chains": chains,
    }


def _run_seed(study: FreedmanStudy, seed: int) -> dict[str, Any]:
    data = study.data(seed)
    fitted = {name: _fit(study, data, settings) for name, settings in SELECTORS.items()}
    return {
        "seed": seed,
        "selection": {name: _chosen(data, selector) for name, selector in fitted.items()},
        "paths": {name: _path(data, fitted[name]) for name in DRAWN},
        "ablation": [
            {"beta": _number_or_text(beta), "zeta": label, **_chosen(data, _fit(study, data, settings))}
            for beta, label, settings in _ablation_cells(study)
        ],
    }


def _fit(study: FreedmanStudy, data: FreedmanData, settings: dict[str, Any]) -> ForwardSelector:
    selector = ForwardSelector(max_features=study.max_features, random_state=0, **PAPER | settings)
    selector.fit(data.train, data.train_target, data.valid, data.valid_target)
    return selector


def _ablation_cells(study: FreedmanStudy) -> Iterator[tuple[float, str, dict[str, Any]]]:
    for beta in study.betas:
        yield beta, "0", {"beta": beta, "zeta": 0.0}
        if math.isfinite(beta):
            yield beta, "theory", {"beta": beta}
        yield beta, "fixed", {"beta": beta, "zeta": math.sqrt(study.fixed_zeta_squared)}


def _chosen(data: FreedmanData, selector: ForwardSelector) -> dict[str, Any]:
    features = [int(feature) for feature in selector.order_]
    found = {"features": features, "test_mse": held_out_error(data, features, refit=True)}
    return found | ({"beta": selector.beta_} if selector.beta == "auto" else {})


def _path(data: FreedmanData, selector: ForwardSelector) -> dict[str, list[float]]:
    """Return objective, validation R² and test errors of every model of the path, the empty one first."""
    features = [int(feature) for feature in selector.path_["feature"][1:]]
    subsets = [features[:size] for size in range(len(features) + 1)]
    path = {
        "objective": selector.path_["objective"].tolist(),
        "validation_r2": selector.path_["validation_r2"].tolist(),
        "test_mse": [held_out_error(data, subset, refit=False) for subset in subsets],
    }
    if selector.criterion == "pac-bayes":
        path["expected_test_mse"] = [expected_test_error(data, selector, subset) for subset in subsets]
    return path


def _success_rate(study: FreedmanStudy, progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Return how often the paper's selector takes exactly the true features, over many more seeds than the rest.

    Twenty seeds cannot tell a rate of 98 % from one of 90 %. The result also names the seeds that went wrong.
    """
    true, wrong, wins = _true_features(study), {}, 0
    for seed in range(study.rate_seeds):
        progress("success rate", seed, study.rate_seeds)
        data = study.data(seed)
        chosen, plain = (_fit(study, data, SELECTORS[name]).order_.tolist() for name in ("pac-bayes", "validation"))
        wins += held_out_error(data, chosen, refit=True) < held_out_error(data, plain, refit=True)
        if set(chosen) != true:
            wrong[seed] = chosen
    exact = study.rate_seeds - len(wrong)
    return {
        "seeds": study.rate_seeds,
        "exact": exact,
        "share_exact": share_interval(exact, study.rate_seeds),
        "wrong": [{"seed": seed, "features": chosen} for seed, chosen in wrong.items()],
        "test_mse_below_validation": wins,
    }


def _true_features(study: FreedmanStudy) -> set[int]:
    return set() if study.null else set(TRUE_FEATURES)


def _selection_summary(study: FreedmanStudy, rows: list[dict[str, Any]]) -> dict[str, Any]:
    true = _true_features(study)
    chosen = [set(row["features"]) for row in rows]
    summary = {
        "exact": sum(features == true for features in chosen),
        "of": len(rows),
        "selected": [len(features) for features in chosen],
        "true_found": [len(features & true) for features in chosen],
        "test_mse": [row["test_mse"] for row in rows],
        "mean_selected": mean_interval([len(features) for features in chosen]),
        "mean_true_found": mean_interval([len(features & true) for features in chosen]),
        "mean_test_mse": mean_interval([row["test_mse"] for row in rows]),
    }
    return summary | ({"betas": [row["beta"] for row in rows]} if "beta" in rows[0] else {})


def _wins(selection: dict[str, dict[str, Any]], name: str) -> int:
    """Count the seeds whose chosen model has a smaller test error than the one Eq. 1 chose."""
    pairs = zip(selection[name]["test_mse"], selection["validation"]["test_mse"], strict=True)
    return sum(own < other for own, other in pairs)


def _correlation_summary(paths: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Return the Pearson correlation of objective and test error along the path of each seed."""
    summary: dict[str, Any] = {}
    for name in ("test_mse", "expected_test_mse"):
        if name in paths[0]:
            values = [float(np.corrcoef(path["objective"], path[name])[0, 1]) for path in paths]
            summary[name] = {"per_seed": values, **mean_interval(values)}
    return summary


def _path_summary(paths: list[dict[str, list[float]]]) -> dict[str, Any]:
    return {name: mean_intervals([path[name] for path in paths]) for name in paths[0]}


def _ablation_summary(study: FreedmanStudy, seeds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    cells = []
    for rows in zip(*seeds, strict=True):
        summary = _selection_summary(study, list(rows))
        kept = {name: summary[name] for name in ("exact", "of", "mean_selected", "mean_true_found", "mean_test_mse")}
        cells.append({"beta": rows[0]["beta"], "zeta": rows[0]["zeta"], **kept})
    return cells


def _number_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
