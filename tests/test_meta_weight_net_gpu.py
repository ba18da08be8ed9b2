"""The comparison with Betty on a GPU runs without one, and finds that the gradients agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--channels-last"]])
def test_a_tiny_comparison_is_made_and_stored(tmp_path, more):
    pytest.importorskip("betty")
    output = tmp_path / "found.json"
    sizes = ["--tiny", "--device", "cpu", "--repeats", "2", "--outer-steps", "1", "--output", output]
    command = [sys.executable, "benchmarks/peers/meta_weight_net_gpu.py", *sizes, *more]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
    found = json.loads(output.read_text())
    assert found["largest gap of gradients"]["by hand"] < 1e-10
    assert found["largest gap of gradients"]["betty"] < 1e-4
    assert found["largest gap of gradients"]["by hand, forward mode"] < 1e-10
    assert set(found["÷"]) == {"betty", "by hand", "by hand, forward mode"}
    assert set(found["÷"]["betty"]) == {"own loop", "eager"}
