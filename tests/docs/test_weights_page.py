"""The tables about example weights in docs/evidence/decays.md, recomputed without the code that writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "benchmarks" / "results" / "weight_ways.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "evidence" / "decays.md").read_text(encoding="utf-8")
DRAWS = sorted({run["draw"] for run in STORED["runs"]})


def column(noise: str, way: str, zeta: float = 0.0, key: str = "test_accuracy") -> np.ndarray:
    """Return the last value of every draw."""
    found = [run for run in STORED["runs"] if (run["noise"], run["way"], run["zeta"]) == (noise, way, zeta)]
    assert [run["draw"] for run in found] == DRAWS
    return np.array([np.atleast_1d(run[key])[-1] for run in found])


def half(values: np.ndarray) -> float:
    stats = pytest.importorskip("scipy.stats")
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def numbers(row: str) -> list[float]:
    """Return the numbers with a point in the one row that begins so."""
    (found,) = [line for line in PAGE.split("\n") if line.startswith(f"| {row} |")]
    cells = re.findall(r"[+−]?\d+\.\d+", found.removeprefix(f"| {row} |"))
    return [float(number.replace("−", "-")) for number in cells]


@pytest.mark.parametrize(("row", "noise", "zeta"), [("pair | 1e-4", "pair", 1e-4), ("random | 3e-3", "random", 3e-3)])
def test_eq5_minus_hyper_drift_is_paired(row: str, noise: str, zeta: float) -> None:
    eq5, drift = column(noise, "eq5", zeta), column(noise, "drift", zeta)
    expected = [f(x) for x in (eq5, drift, eq5 - drift) for f in (np.mean, half)]
    assert numbers(row)[:6] == pytest.approx(expected, abs=0.0501)
    ranks = [column(noise, way, zeta, "auc").mean() for way in ("eq5", "drift")]
    assert numbers(row)[6:] == pytest.approx(ranks, abs=0.00501)
    assert re.search(rf"^\| {re.escape(row)} \|.*, {(eq5 > drift).sum()} of {len(DRAWS)} \|", PAGE, re.MULTILINE)


def test_clean_rows_alone() -> None:
    values = [column(noise, "clean") for noise in ("pair", "random")]
    assert numbers("clean rows alone") == pytest.approx([f(x) for x in values for f in (np.mean, half)], abs=0.0501)


def test_no_draw_served_the_choice_of_the_rates() -> None:
    assert not set(DRAWS) & {run["draw"] for run in STORED["design"]}
    assert {tuple(run["rates"]) for run in STORED["runs"]} == {(0.03, 0.1)}
    assert len(STORED["runs"]) == 2 * len(DRAWS) * 21  # kinds of noise × draws × (ways without ζ, and two with eight)
