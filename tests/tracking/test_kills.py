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
def test_kills_lose_nothing(tmp_path: Path) -> None:
    output = tmp_path / "faults.json"
    command = [sys.executable, str(SCRIPT), "--fork", "--kills", "6", "--steps", "30", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert (report["kills"], report["passed"]) == (6, True)
    for kind in report["kinds"].values():
        assert kind["kills"] == 2
        assert kind["steps_lost"] == 0
        assert kind["history_equal"]
        assert kind["plain_history_equal"]
        assert kind["result_equal"]


def test_the_long_form_was_run_on_every_kind() -> None:
    report = json.loads(RESULTS.read_text())
    assert report["passed"]
    assert report["kills"] >= 60
    assert list(report["kinds"]) == ["loader", "chains", "grid"]
