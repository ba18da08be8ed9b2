"""The script that runs other ways to get decays on a GPU runs without one, goes on, and its export can be shown."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pactune.paper.weight_decay.records import read_studies

ROOT = Path(__file__).parents[2]
RUNS = [
    "one-half:0:0,1",
    "one-all:0:1",
    "eq5:0-1:0,1e-6",
    "drift",
    "zero-clamped-0.1",
    "zero-softplus-0.1",
    "folds",
    "online",
]


def make_tiny(folder, *more):
    command = [sys.executable, "benchmarks/ways_gpu.py", *RUNS, "--tiny", "--device", "cpu", "--folder", folder]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([*command, *more], cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
    return json.loads((folder / "ways-linear-digits.json").read_text())


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module("decay_ways_table")


def test_tiny_runs_are_made_go_on_and_are_shown(tmp_path, tables):
    first = make_tiny(tmp_path)
    assert [(run["way"], run["draw"], run["decay"]) for run in first["runs"][:3]] == [
        ("one-half", 0, 0.0),
        ("one-half", 0, 1.0),
        ("one-all", 0, 1.0),
    ]
    assert [(run["way"], run["draw"], run["zeta"]) for run in first["runs"][3:]] == [
        ("eq5", 0, 0.0),
        ("eq5", 1, 0.0),
        ("eq5", 0, 1e-6),
        ("eq5", 1, 1e-6),
        ("drift", 0, 1e-6),
        ("zero-clamped-0.1", 0, 0.0),
        ("zero-softplus-0.1", 0, 0.0),
        ("folds", 0, 1e-6),
        ("online", 0, 3.75e-9),
    ]
    assert all(run["outer_step"] == [1, 2] for run in first["runs"])
    more = make_tiny(tmp_path, "--outer-steps", "3")
    for before, after in zip(first["runs"], more["runs"], strict=True):
        assert after["outer_step"] == [1, 2, 3]
        assert after["weight_norm"][:2] == before["weight_norm"]
    assert read_studies(tmp_path) == []  # a file of another kind, which the studies' reader leaves alone
    (document,) = tables.read_ways(tmp_path)
    shown = tables.ways_section(document).splitlines()
    assert shown[0] == "### Other ways to get decays: linear, digits"
    assert shown[5].startswith("| one decay of 1, not tuned, half of the images |  | draw 0 |")
    assert shown[6].startswith("| one decay of 1, not tuned, all images |  | draw 0 |")
    assert shown[7].startswith("| ζ = 0 | 0 | 2 draws |")
    assert shown[10].startswith("| ζ = 0, λ ≥ 0 clamped, outer learning rate 0.1 | 0 | draw 0 |")
    assert shown[12].startswith("| `HyperDrift`, 2 folds and a model of all images | 1e-06 | draw 0 |")
    assert shown[13].startswith("| Eq. 5 online | 3.75e-09 | draw 0 |")


def test_runs_of_different_lengths_are_compared_at_the_last_common_step(tables):
    setting = {"objective": "eq5", "online": False, "sign": "any", "rows": "half", "outer_lr": 0.01}
    long = {"outer_step": [1, 2, 3], "test_accuracy": [0.5, 0.6, 0.9], "valid_accuracy": [0.1, 0.2, 0.3]}
    short = {"outer_step": [1, 2], "test_accuracy": [0.7, 0.4], "valid_accuracy": [0.3, 0.2]}
    common = {"way": "eq5", "zeta": 1e-6, "setting": setting}
    runs = [{**common, "draw": 0, **long}, {**common, "draw": 1, **short}]
    document = {"model": "resnet18", "data": "mnist", "outer_steps": 100, "runs": runs}
    row = tables.ways_section(document).splitlines()[-1]
    assert row == ("| Eq. 5 | 1e-06 | 2 draws, after 2 of 100 outer steps | 50.0 (40.0, 60.0) | 20.0 | 60.0, step 1 |")
    found = {"plain": {"accuracy": 50.0}, "one decay": {"accuracy": 70.0}, "tune": 60.0}
    rows = tables.ways_section(document, [found]).splitlines()
    assert rows[-4] == row
    assert rows[-1] == "| `pt.tune`, all images |  | 1 draws | 60.0 |  |  |"
