"""The tables of docs/evidence/decays.md, recomputed from the stored runs without the code that writes them."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
made: ModuleType = importlib.import_module("make_decays")
decays: ModuleType = importlib.import_module("claims.decays")
sys.path.remove(str(ROOT / "docs"))

RESULTS = ROOT / "benchmarks" / "results"
WAYS, CIFAR = (
    json.loads((RESULTS / f"decay_ways_{data}.json").read_text(encoding="utf-8"))["ways"]
    for data in ("mnist", "cifar10")
)
PAGE = (ROOT / "docs" / "evidence" / "decays.md").read_text(encoding="utf-8")
NUMBER = r"([+−]?\d+\.\d)"


def last(way: str, ways: Any = WAYS, **cell: float) -> np.ndarray:
    """Return the last test accuracy of every draw."""
    found = [run for run in ways[way]["runs"] if all(run[key] == value for key, value in cell.items())]
    assert [run["draw"] for run in found] == list(range(12))
    return np.array([run["test_accuracy"][-1] for run in found])


def half(values: np.ndarray) -> float:
    stats = pytest.importorskip("scipy.stats")
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def line(row: str) -> str:
    (found,) = [line for line in PAGE.split("\n") if line.startswith(f"| {row} |")]
    return found


def cells(row: str) -> list[float]:
    """Return the numbers with one place behind the point in the one row that begins so."""
    found = line(row).removeprefix(f"| {row} |")
    return [float(number.replace("−", "-")) for number in re.findall(NUMBER, found)]


def test_signs() -> None:
    ways = [last(f"zero, clamped, {rate}") for rate in ("0.01", "0.1", "0.3")]
    expected = [number for values in ways for number in (values.mean(), half(values))]
    assert cells("MNIST | ζ = 0, λ ≥ 0 by clamping") == pytest.approx(expected, abs=0.0501)


@pytest.mark.parametrize(("shown", "zeta"), [("1e-6", 1e-6), ("3e-6", 3e-6), ("1e-3", 1e-3)])
def test_eq5_minus_hyper_drift_is_paired(shown: str, zeta: float) -> None:
    eq5, drift = last("eq5", zeta=zeta), last("drift", zeta=zeta)
    expected = [f(x) for x in (eq5, drift, eq5 - drift) for f in (np.mean, half)]
    assert cells(shown)[:6] == pytest.approx(expected, abs=0.0501)
    assert f"{(eq5 > drift).sum()} of 12 |" in line(shown)


def test_one_decay_is_better_than_the_best_tuned_way() -> None:
    one, tuned = last("one decay, all", decay=1.0), last("folds, zero, clamped")
    said = re.search(rf"{NUMBER} ± {NUMBER} points\s+lower", PAGE)
    assert said is not None
    assert [float(number) for number in said.groups()] == pytest.approx(
        [(one - tuned).mean(), half(one - tuned)], abs=0.0501
    )


def test_runs_that_ended_early_are_counted() -> None:
    lengths = [len(run["test_accuracy"]) for run in WAYS["zero, any, 0.1"]["runs"]]
    ended = sum(length < 100 for length in lengths)
    assert 0 < ended < 12
    assert f", {ended} of 12 diverged |" in PAGE


def test_a_second_data_set_is_shown_as_soon_as_it_has_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the ways is enough: the command writes its file after each of them."""
    stored = decays.read

    def with_another(name: str) -> Any:
        found = stored(name.replace("cifar10", "mnist"))
        return {**found, "ways": {"eq5": found["ways"]["eq5"]}} if "cifar10" in name else found

    for module in (made, decays):
        monkeypatch.setattr(module, "read", with_another)
        monkeypatch.setattr(module, "data_sets", lambda: decays.NAMES)
    tables = made.tables()
    assert "CIFAR-10, `HyperDrift`" in tables["zetas"]
    assert "| 66.0 ± 1.7 | not run | not run |" in tables["zetas"]
    assert "| CIFAR-10 | ζ = 0, λ of any sign | not run | not run | not run |" in tables["signs"]
    assert tables["folds"].count("not run") == 17  # nine ways, and their differences to the first


def test_eq5_is_better_than_the_sign_constraint_on_cifar10() -> None:
    eq5, clamped = last("eq5", CIFAR, zeta=5e-6), last("zero, clamped, 0.01", CIFAR)
    said = re.search(rf"{NUMBER} ± {NUMBER} points above λ ≥ 0 and better on (\d+) of 12 draws", PAGE)
    assert said is not None
    expected = [(eq5 - clamped).mean(), half(eq5 - clamped), (eq5 > clamped).sum()]
    assert [float(number) for number in said.groups()] == pytest.approx(expected, abs=0.0501)


def test_the_front_door() -> None:
    tune, plain = last("tune"), last("one decay, all", decay=0.0)
    expected = [tune.mean(), half(tune), (tune - plain).mean(), half(tune - plain)]
    assert cells("`pt.tune`")[:4] == pytest.approx(expected, abs=0.0501)
