"""The methods that the paper compares: the outer step that each keeps, and their test accuracies over draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pactune.columns import Row
from pactune.paper.intervals import Interval, bootstrap_interval
from pactune.paper.weight_decay.records import RunRecord, StudyRecord

__all__ = ["METHODS", "Comparison", "Summary", "compare", "least_norm_row", "oracle_row", "summarise"]

Key = tuple[int, int]  # draw and init

# The names of the methods in tables; `summarise` says which row of which run each takes.
METHODS = {
    "plain": "plain training, λ = 0",
    "zero": "ζ = 0, last step",
    "min_norm": "ζ = 0, least norm",
    "regularized": "Eq. 5, last step",
    "online": "Eq. 5 online, last step",
    "auto": 'ζ = "auto"',
    "oracle": "ζ = 0, oracle step",
}


class Summary(NamedTuple):
    """Test accuracies of a study by method and by (draw, init).

    Attributes:
        values: the accuracies, for every method that was run.
        steps: the number of outer steps behind them.
        zetas: ζ of Eq. 5 offline and online.
        diverged: number of runs that diverged; they count with their last row.
    """

    values: dict[str, dict[Key, float]]
    steps: int
    zetas: dict[str, float]
    diverged: int

    def interval(self, method: str) -> Interval | None:
        """Return mean and bootstrap interval; None if the method was not run."""
        values = self.values.get(method)
        return bootstrap_interval(list(values.values())) if values else None


class Comparison(NamedTuple):
    """One method against another, on the same draws and initial weights."""

    gain: Interval
    wins: int
    of: int


def least_norm_row(rows: Sequence[Row]) -> Row:
    """Return the row of least ‖θ‖ among those of maximal validation accuracy: the paper's baseline."""
    best = max(row["valid_accuracy"] for row in rows)
    return min((row for row in rows if row["valid_accuracy"] == best), key=lambda row: float(row["weight_norm"]))


def oracle_row(rows: Sequence[Row]) -> Row:
    """Return the first row of maximal test accuracy; no user could choose it."""
    return max(rows, key=lambda row: float(row["test_accuracy"]))


def summarise(study: StudyRecord) -> Summary:
    """Return the test accuracies of all methods of a study.

    Only finished runs count. While no run is finished, all runs count up to the last outer step that all have reached.
    Plain training counts if it has reached the same step.
    """
    total = study.settings["outer_steps"]
    runs = [run for run in study.records if run.rows]
    over = [run for run in runs if len(run.rows) >= total or run.end.get("status") == "diverged"]
    used, steps = (over, total) if over else (runs, min((len(run.rows) for run in runs), default=0))
    tuned = [run for run in used if not isinstance(run.cell["zeta"], str)]
    zero = [run for run in tuned if run.cell["zeta"] == 0 and not run.setting["online"]]
    offline = _first_zeta([run for run in tuned if run.cell["zeta"] != 0 and not run.setting["online"]])
    online = _first_zeta([run for run in tuned if run.cell["zeta"] != 0 and run.setting["online"]])
    auto = [run for run in used if run.cell["zeta"] == "auto" and run.kept]
    values = {
        "plain": _values([run for run in zero if len(run.plain) >= steps], lambda run: run.plain[:steps][-1]),
        "zero": _values(zero, lambda run: run.rows[:steps][-1]),
        "min_norm": _values(zero, lambda run: least_norm_row(run.rows[:steps])),
        "regularized": _values(offline, lambda run: run.rows[:steps][-1]),
        "online": _values(online, lambda run: run.rows[:steps][-1]),
        "auto": _values(auto, lambda run: run.kept),
        "oracle": _values(zero, lambda run: oracle_row(run.rows[:steps])),
    }
    zetas = {name: runs[0].cell["zeta"] for name, runs in (("regularized", offline), ("online", online)) if runs}
    diverged = sum(run.end.get("status") == "diverged" for run in used)
    return Summary({name: found for name, found in values.items() if found}, steps, zetas, diverged)


def compare(summary: Summary, method: str, other: str) -> Comparison | None:
    """Compare two methods on the draws and initial weights that both have; None if they share none."""
    own, theirs = summary.values.get(method, {}), summary.values.get(other, {})
    shared = [key for key in own if key in theirs]
    if not shared:
        return None
    gains = np.array([own[key] - theirs[key] for key in shared])
    return Comparison(bootstrap_interval(gains), int((gains > 0).sum()), len(shared))


def _first_zeta(runs: list[RunRecord]) -> list[RunRecord]:
    """Return the runs whose ζ is that of the first run."""
    return [run for run in runs if run.cell["zeta"] == runs[0].cell["zeta"]]


def _values(runs: Sequence[RunRecord], row: Callable[[RunRecord], Row]) -> dict[Key, float]:
    return {(run.cell["draw"], run.cell["init"]): float(row(run)["test_accuracy"]) for run in runs}
