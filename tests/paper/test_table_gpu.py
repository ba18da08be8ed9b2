"""The script that makes rows of the table on a GPU runs without one, and its export can be read and made again."""

import os
import subprocess
import sys
from pathlib import Path

from pactune.paper.weight_decay.records import read_studies
from pactune.paper.weight_decay.rules import summarise
from pactune.tracking.journal import read_lines

ROOT = Path(__file__).parents[2]


def make_tiny(folder, *more):
    command = [
        sys.executable,
        "benchmarks/table_gpu.py",
        "--tiny",
        "--device",
        "cpu",
        "--draws",
        "0",
        "--folder",
        folder,
    ]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([*command, *more], cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
    return next(folder.glob("*.json")).read_bytes()


def rows_of(folder, plain):
    journal = read_lines(folder / "cells" / f"model=linear,data=digits,zeta=0.0,draw=0,init=0,plain={plain}")
    return [line for line in journal if line["kind"] == "row"]


def test_a_tiny_row_is_made_and_exported(tmp_path):
    written = make_tiny(tmp_path)
    (study,) = read_studies(tmp_path)
    assert study.finished == study.asked == 2
    assert study.settings["note"].startswith("`python benchmarks/table_gpu.py")
    zero, tuned = study.records
    assert (zero.cell["zeta"], len(zero.rows), len(zero.plain)) == (0.0, 2, 2)
    assert (tuned.cell["zeta"] > 0, len(tuned.rows), len(tuned.plain)) == (True, 2, 0)
    lengths = [[row["weight_norm"] for row in rows_of(tmp_path, plain)] for plain in (False, True)]
    assert lengths[0][0] == lengths[1][0]
    assert lengths[0][1] != lengths[1][1]  # λ moves in the tuned run alone
    assert make_tiny(tmp_path, "--export-only") == written


def test_the_note_says_that_plain_training_was_not_run(tmp_path):
    make_tiny(tmp_path, "--kinds", "zero", "eq5")
    (study,) = read_studies(tmp_path)
    assert study.settings["note"].endswith("Plain training was not run.")


def test_a_remark_is_kept_by_later_exports(tmp_path):
    make_tiny(tmp_path, "--kinds", "zero", "--remark", "Made on a train.")
    make_tiny(tmp_path)
    (study,) = read_studies(tmp_path)
    assert study.settings["note"].endswith("with an outer learning rate of 0. Made on a train.")
    assert all(run.facts["engine"] for run in study.records)


def test_online_runs_join_the_exported_study(tmp_path):
    make_tiny(tmp_path)
    make_tiny(tmp_path, "--kinds", "online")
    (study,) = read_studies(tmp_path)
    assert study.finished == study.asked == 3
    *others, online = study.records
    assert [run.setting["online"] for run in others] == [False, False]
    assert (online.setting["online"], online.cell["zeta"], len(online.rows)) == (True, 3.75e-9, 2)
    assert set(summarise(study).values) == {"plain", "zero", "min_norm", "regularized", "online", "oracle"}
