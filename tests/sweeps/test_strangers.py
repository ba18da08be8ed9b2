"""Folders of sweeps that came from elsewhere, and tables that go to spreadsheets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pactune as pt
from pactune.sweeps import CellResult
from pactune.sweeps.cell_settings import CellFit
from pactune.sweeps.cell_state import CellState
from pactune.sweeps.result import cell_result
from pactune.sweeps.run import _open_folder
from pactune.sweeps.worker import Failure
from pactune.tracking import Journal
from pactune.tracking.journal import JOURNAL

FIT = CellFit(outer_steps=2, keep="last", tolerance=0.0, plain_steps=None, build="build", test=None)


def test_tables_hold_no_formulas(tmp_path: Path) -> None:
    formula = '=HYPERLINK("http://x","y")'
    row = {"outer_step": 1, "seconds": 1.0, "objective": -0.5}
    cell = CellResult({"model": formula, "seed": -1}, "failed", tmp_path, [row], [], {}, "@SUM(A1)\r=1+1")
    pt.SweepResult(tmp_path, [cell], lambda: None, {}).write_report()  # type: ignore[arg-type]
    for name in ("cells.csv", "history.csv"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "'=HYPERLINK" in text
        assert ",-1," in text, "numbers stay numbers"
        assert "\r" not in text
    assert "'@SUM" in (tmp_path / "cells.csv").read_text(encoding="utf-8")


def test_a_cell_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sweep" / "cells").mkdir(parents=True)
    (tmp_path / "sweep" / "cells" / "seed=0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(pt.RunFolderError, match="is a link"):
        CellState({"seed": 0}, tmp_path / "sweep", FIT)


def test_a_traceback_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    folder = tmp_path / "cells" / "seed=0"
    folder.mkdir(parents=True)
    (folder / "error.txt").symlink_to(tmp_path / "precious")
    state = CellState({"seed": 0}, tmp_path, FIT)
    state.end(Failure("it failed", "a trace"))
    assert state.status == "failed"
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "cell", "status": "completed"},
        {"kind": "cell", "status": 3, "build": "build"},
        {"kind": "cell", "status": "completed", "build": ["build"]},
        {"kind": "row", "outer_step": "1"},
        {"kind": "row", "outer_step": 1},
        {"kind": "start", "settings": "x", "versions": {}},
    ],
)
def test_crafted_lines_of_a_cell_leave_it_to_be_run(line: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "cells" / "seed=0").mkdir(parents=True)
    with Journal(tmp_path / "cells" / "seed=0") as journal:
        journal.extend([line])
    state = CellState({"seed": 0}, tmp_path, FIT)
    assert state.status == "waiting"
    assert cell_result(state).ending == {}


def test_a_damaged_first_line_does_not_refuse_a_sweep(tmp_path: Path) -> None:
    with _open_folder(tmp_path) as (_, journal):
        journal.append("sweep", grid={"seed": [0]})
        journal.append("cell", name="seed=0", status="completed", attempts=1)
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[12] ^= 1
    (tmp_path / JOURNAL).write_bytes(data)
    with _open_folder(tmp_path) as (root, _):
        assert root == tmp_path.resolve()
