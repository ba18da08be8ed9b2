"""The committed results of the certificates reach their bars; `tests/docs/test_numbers.py` ties the page to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "certificate"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("file", "study", "posterior", "bar"),
    [
        ("mnist-large.json", "MNIST, linear, raw", "union", 0.14),
        ("mnist-large.json", "MNIST, linear, raw", "train", 0.155),
        ("digits.json", "digits, linear, centred", "union", 0.27),
    ],
)
def test_the_committed_results_reach_their_bars(file: str, study: str, posterior: str, bar: float) -> None:
    found = read(file)["studies"][study]
    rows = [row for row in found["rows"] if row["posterior"] == posterior]
    assert min(row["certificate"] for row in rows) <= bar
    assert len(found["rows"]) == found["settings"]["size"]
    assert all(row["certificate"] >= row["test_error"] for row in found["rows"])


def test_committed_coverage() -> None:
    rows = read("coverage.json")["coverage"]
    broken = [row["name"].startswith("broken") for row in rows]
    assert {*broken} == {True, False}
    assert [row["violations"] > row["delta"] * row["repetitions"] for row in rows] == broken


def test_committed_attempts() -> None:
    found = read("coverage.json")["attempts"]
    assert {row["item"].split()[0] for row in found} == {str(item) for item in range(10, 17)}
    for row in found:
        assert row["false"] == 0
        assert row["refused"] == (0 if row["right"] else row["repetitions"])
    assert sum(row["right"] for row in found) >= 5, "a library that refuses everything would pass too"
