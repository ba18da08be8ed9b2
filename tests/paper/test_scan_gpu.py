"""The script that scans ζ on a GPU runs without one; it takes the runs at the paper's ζ from the table's study."""

import os
import subprocess
import sys
from pathlib import Path

from pactune.paper.weight_decay.records import read_studies

ROOT = Path(__file__).parents[2]
PAPER = 1e-6


def run(script: str, folder: Path, export: Path, *more: str) -> str:
    command = [sys.executable, f"benchmarks/{script}.py", "--tiny", "--device", "cpu", "--folder", str(folder)]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    settings = {"cwd": ROOT, "env": {**os.environ, **paths}, "check": True, "capture_output": True, "text": True}
    return subprocess.run([*command, "--export", str(export), *more], **settings).stdout


def test_a_tiny_scan_joins_its_runs_and_those_of_the_table(tmp_path: Path) -> None:
    export = tmp_path / "export"
    run("table_gpu", tmp_path / "table", export, "--kinds", "eq5", "--draws", "0")
    assert "7 runs at once" in run("scan_gpu", tmp_path / "scan", export)
    studies = {study.name: study for study in read_studies(export)}
    scan, correlation, table = (studies[f"{item}-linear-digits"] for item in ("scan", "correlation", "table"))
    assert (scan.finished, scan.asked, scan.settings["outer_steps"]) == (8, 8, 2)
    assert scan.records == correlation.records
    assert "table-linear-digits.json" in scan.settings["note"]
    found = {(run.cell["zeta"], run.cell["draw"]) for run in scan.records}
    assert found == {(zeta, draw) for zeta in (0.0, 1e-7, PAPER, 1e-4) for draw in (0, 1)}
    (known,) = [run for run in table.records if run.cell["zeta"] == PAPER]
    assert known.rows in [run.rows for run in scan.where(zeta=PAPER)]
    assert all(run.rows[0]["regularizer"] > 0 for run in scan.where(zeta=0.0))
