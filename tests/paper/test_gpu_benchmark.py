"""The benchmark of a GPU runs without one, and keeps that the engine then takes its slow way."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = ["steps are run one by one: the model is not on a CUDA device"]


def run(*arguments: object) -> str:
    command = [sys.executable, "benchmarks/gpu.py", "--tiny", "--device", "cpu", *map(str, arguments)]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True, text=True)
    return done.stdout


def test_every_row_has_times_and_what_the_engine_said(tmp_path):
    output = tmp_path / "found.json"
    run("--output", output)
    found = json.loads(output.read_text(encoding="utf-8"))
    linear, networks = (found[name] for name in found if name != "machine")
    assert set(linear) == {"fused", "captured"}
    assert all(row["seconds"] >= 0 and row["outer steps"] == 1 for row in linear.values())
    assert len(networks) == 11
    for name, row in networks.items():
        assert row["ms per run and step"] > 0, name
        assert row["what the engine said"] == ([] if name == "eager" else SLOW), name


def test_rows_that_are_not_measured_again_stay(tmp_path):
    output = tmp_path / "found.json"
    output.write_text(json.dumps({"machine": {}, "another part": {"row": {"seconds": 1}}}), encoding="utf-8")
    run("--output", output, "--only", "ten runs, captured")
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found.pop("another part") == {"row": {"seconds": 1}}
    assert found.pop("machine")["device"] == "CPU"
    assert [list(rows) for rows in found.values()] == [["ten runs, captured"]]


def test_kernels_are_printed_by_their_time():
    lines = run("--kernels", "--only", "ten runs, captured").splitlines()
    assert lines[0].startswith("ten runs, captured: a round of 28 steps")
    times = [float(line.split()[0]) for line in lines[1:]]
    assert len(times) > 10
    assert times == sorted(times, reverse=True)
