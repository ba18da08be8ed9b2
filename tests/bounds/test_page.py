"""The tables of the certificates page are those of the committed results, and the results reach their bars."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "certificate"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_page_is_what_the_results_say() -> None:
    spec = importlib.util.spec_from_file_location("make_certificates", ROOT / "docs" / "make_certificates.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    written = made.PAGE.read_text(encoding="utf-8")
    assert written == made.page(), "run `python docs/make_certificates.py`"
    assert "0.1296" in written


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
    for row in read("coverage.json")["coverage"]:
        broken = row["name"].startswith("broken")
        assert (row["violations"] > row["delta"] * row["repetitions"]) == broken


def test_committed_attempts() -> None:
    found = read("coverage.json")["attempts"]
    assert {row["item"].split()[0] for row in found} == {str(item) for item in range(10, 17)}
    for row in found:
        assert row["false"] == 0
        assert row["refused"] == (0 if row["right"] else row["repetitions"])
    assert sum(row["right"] for row in found) >= 5, "a library that refuses everything would pass too"
