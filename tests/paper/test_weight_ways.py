"""The script that compares objectives for example weights runs in a small size, and its scenes are what they say."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAYS = ["plain", "clean", "both", "zero", "zero, ten steps", "eq5", "drift"]
ZETAS = 8


@pytest.fixture(scope="module")
def ways():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("weight_ways")


def make_tiny(output, *more):
    command = [sys.executable, "benchmarks/weight_ways.py", "runs", "--tiny", "--output", str(output), *more]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True, encoding="utf-8"
    )
    return json.loads(output.read_text("utf-8"))["runs"], ran.stdout.splitlines()


def test_tiny_runs_are_stored_and_not_made_again(tmp_path):
    made, _ = make_tiny(tmp_path / "found.json", "--draws", "0", "--ways", *WAYS)
    assert list(dict.fromkeys(run["way"] for run in made)) == WAYS
    assert len(made) == 2 * (5 + 2 * ZETAS)  # kinds of noise × (ways without ζ and ways with)
    assert all(len(run["test_accuracy"]) == (2 if "auc" in run else 4) for run in made)
    again, lines = make_tiny(tmp_path / "found.json", "--draws", "0", "1", "--ways", "plain", "zero")
    assert again[: len(made)] == made
    assert len(lines) == len(again) - len(made) == 4  # the kinds of noise × ways of draw 1


def test_a_regularizer_changes_the_weights(ways):
    images, scale = ways.load_images("digits"), ways.Scale("digits", 4, 2, 60, 20, 2, 50)
    runs = {
        name: ways.run(ways.WAYS[name], zeta, ways.RATES, scale, images, "random", 0)
        for name, zeta in (("zero", 0.0), ("eq5", 1.0), ("drift", 1.0))
    }
    assert len({(run["right"], run["wrong"]) for run in runs.values()}) == 3
    assert abs(runs["drift"]["right"] - 1) < abs(runs["zero"]["right"] - 1)  # it pulls the weights to their start


@pytest.mark.parametrize(("noise", "share"), [("pair", 0.45), ("random", 0.8 * 0.9)])
def test_labels_are_wrong_in_the_share_that_is_said(ways, noise, share):
    scale = ways.Scale("digits", rows=500, clean_rows=100)
    found = [ways.scene(ways.load_images("digits"), scale, noise, draw) for draw in (0, 0, 1)]
    assert abs(float(found[0].wrong.float().mean()) - share) < 4 * (share * (1 - share) / 500) ** 0.5  # four deviations
    assert bool((found[0].noisy[1] == found[1].noisy[1]).all())
    assert not bool((found[0].noisy[0] == found[2].noisy[0]).all())
    assert len(found[0].clean[1]) == 100


def test_rows_that_validate_do_not_train(ways):
    found = ways.scene(ways.load_images("digits"), ways.Scale("digits", rows=300, clean_rows=50), "pair", 0)
    train = {tuple(row.tolist()) for row in found.noisy[0]}
    assert not any(tuple(row.tolist()) in train for row in found.clean[0])
