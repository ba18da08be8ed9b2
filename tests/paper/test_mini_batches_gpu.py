"""The design experiment of the mini-batches runs without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_tiny_experiment_is_run_and_stored(tmp_path):
    output = tmp_path / "found.json"
    command = [sys.executable, "benchmarks/mini_batches_gpu.py", "--tiny", "--device", "cpu", "--output", output]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
    runs = json.loads(output.read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 16
    assert all(run["step"] == [10, 20] for run in runs)
    plain = [run["iterate"][-1] for run in runs if run["shrink"] == 0]
    assert sum(plain) / len(plain) > 30  # of ten classes, after 20 steps
