"""The script that trains with one decay on a GPU runs without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tiny_runs_are_made_and_stored(tmp_path):
    output = tmp_path / "found.json"
    command = [sys.executable, "benchmarks/one_decay_gpu.py", "--tiny", "--device", "cpu", "--draws", "0"]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    more = ["--decays", "0", "100", "--output", output]
    subprocess.run([*command, *more], cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
    found = json.loads(output.read_text())
    assert found["command"] == "python benchmarks/one_decay_gpu.py"
    assert [(run["images"], run["decay"]) for run in found["runs"]] == [(12, 0.0), (12, 100.0), (6, 0.0), (6, 100.0)]
    assert all(run["step"] == [20, 40] for run in found["runs"])
    for zero, large in (found["runs"][:2], found["runs"][2:]):
        assert large["weight_norm"][-1] < 0.9 * zero["weight_norm"][-1]
