"""The script that compares ways to get decays runs in a small size, and its ways are what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAYS = ["one decay, all", "zero, clamped, 0.1", "folds, drift, any"]


def run(output, draws, *ways):
    command = [sys.executable, "benchmarks/decay_ways.py", "--tiny", "--draws", str(draws), "--ways", *ways]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command += ["--output", str(output)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
    return json.loads(output.read_text())["ways"]


def test_ways_run_and_are_stored(tmp_path):
    ways = run(tmp_path / "found.json", 2, *WAYS)
    assert list(ways) == WAYS
    assert [len(way["runs"]) for way in ways.values()] == [12, 2, 4]  # decays × draws, draws, ζ × draws
    assert all(len(run["test_accuracy"]) == 2 for way in ways.values() for run in way["runs"])


@pytest.mark.slow
def test_the_front_door_is_one_of_the_ways(tmp_path):
    (found,) = run(tmp_path / "found.json", 1, "tune")["tune"]["runs"]
    assert found["draw"] == 0
    assert 100 / 10 < found["test_accuracy"][0] <= 100  # above chance, from 20 images of digits
    assert found["kept"] in ("plain training", "one decay", "the tuned model")
