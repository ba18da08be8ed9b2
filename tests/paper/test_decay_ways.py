"""The script that compares ways to get decays runs in a small size, and its ways are what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAYS = ["one decay, all", "zero, clamped, 0.1", "folds, drift, any"]


def test_ways_run_and_are_stored(tmp_path):
    output = tmp_path / "found.json"
    command = [sys.executable, "benchmarks/decay_ways.py", "--tiny", "--draws", "2", "--ways", *WAYS]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command += ["--output", str(output)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
    ways = json.loads(output.read_text())["ways"]
    assert list(ways) == WAYS
    assert [len(way["runs"]) for way in ways.values()] == [12, 2, 4]  # decays × draws, draws, ζ × draws
    assert all(len(run["test_accuracy"]) == 2 for way in ways.values() for run in way["runs"])
