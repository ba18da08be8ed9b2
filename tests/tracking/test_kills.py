"""A run survives SIGKILL at random moments; `make faults` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faults.py"
RESULTS = SCRIPT.parent / "results" / "faults.json"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_five_kills_lose_nothing(tmp_path: Path) -> None:
    output = tmp_path / "faults.json"
    command = [sys.executable, str(SCRIPT), "--fork", "--kills", "5", "--steps", "40", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert report["kills"] == 5
    assert report["steps_lost"] == 0
    assert report["history_equal"]
    assert report["plain_history_equal"]
    assert report["result_equal"]
