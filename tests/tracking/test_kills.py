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


def test_the_page_says_what_was_measured() -> None:
    report = json.loads(RESULTS.read_text())
    page = (SCRIPT.parents[1] / "docs" / "runs.md").read_text()
    assert report["passed"]
    assert report["kills"] >= 50
    rows = {
        "kills by SIGKILL": "kills",
        "of these while a checkpoint was being written": "kills_while_a_checkpoint_was_written",
        "of these before the attempt finished a step of its own": "kills_before_the_first_new_step",
        "outer steps": "outer_steps",
        "finished outer steps lost": "steps_lost",
    }
    assert all(f"| {words} | {report[name]} |" in page for words, name in rows.items())
