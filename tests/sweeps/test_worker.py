"""One cell without Ray: what counts as done, what a worker reports, and what is shown meanwhile."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pactune as pt
from pactune.report.cells import SweepTables
from pactune.report.sweep import mean_lines, write_sweep_page
from pactune.sweeps import display, worker
from pactune.sweeps.cell_journal import find_ending
from pactune.sweeps.cell_settings import CellFit
from pactune.sweeps.cell_state import CellState
from pactune.sweeps.result import SweepResult, cell_result
from pactune.sweeps.worker import CellTask, Failure, run_cell
from pactune.tracking import Journal, read_journal

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def build(seed: int) -> pt.Tuner:
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=(X, Y), valid=(X, Y), loss=nn.functional.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=1, outer=outer, objective=pt.PACBayes(0.1))


def fit_for(steps: int, **changes: Any) -> CellFit:
    settings = {"keep": "last", "tolerance": 0.0, "plain_steps": None, "build": "build", "test": None} | changes
    return CellFit(outer_steps=steps, **settings)


@pytest.fixture(name="root")
def root_fixture(tmp_path: Path) -> Path:
    with Journal(tmp_path) as journal:
        journal.append("sweep")
    return tmp_path


@pytest.fixture(name="payload")
def payload_fixture(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What stands for (build, None); test modules cannot be imported by name, so nothing is really pickled."""
    monkeypatch.setattr(pickle, "loads", lambda data: (build, None))
    return b""


def run(root: Path, fit: CellFit, payload: bytes, seed: int = 0) -> CellState:
    state = CellState({"seed": seed}, root, fit)
    state.end(run_cell(CellTask(state.cell, state.folder, fit, threads=1), payload))
    return state


def test_a_cell_is_done_only_as_it_was_asked_for(root: Path, payload: bytes) -> None:
    assert run(root, fit_for(2), payload).status == "completed"
    folder = root / "cells" / "seed=0"
    ending = find_ending(folder, fit_for(2))
    assert ending is not None
    assert ending["kept_step"] == 2
    assert find_ending(folder, fit_for(3)) is None
    assert find_ending(folder, fit_for(2, keep="best-objective")) is None
    assert find_ending(folder, fit_for(2, test="9 rows")) is None
    assert find_ending(root / "cells" / "seed=1", fit_for(2)) is None
    with pytest.raises(pt.RunFolderError, match="made by `build`"):
        find_ending(folder, fit_for(2, build="other"))
    assert run(root, fit_for(3), payload).status == "completed"
    assert [line["kind"] for line in read_journal(folder)].count("resume") == 1
    assert run(root, fit_for(2), payload).failure.error.startswith("SettingError: `outer_steps` must be at least 3")


def test_a_cell_that_chooses_its_zeta(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def automatic(seed: int) -> pt.Tuner:
        given, objective = build(seed), pt.PACBayes(zeta=pt.AutoZeta(folds=2))
        settings = {"inner": given.inner, "inner_steps": given.inner_steps, "outer": given.outer, "seed": given.seed}
        return pt.Tuner(given.problem, objective=objective, **settings)

    monkeypatch.setattr(pickle, "loads", lambda data: (automatic, None))
    state = run(root, fit_for(2), b"")
    assert state.status == "completed", state.failure
    plain = automatic(0).fit(2, progress=False)
    found = cell_result(state)
    assert found.ending["kept_zeta"] == plain.zeta
    assert found.ending["verdict"] == plain.verdict
    assert [row["objective"] for row in found.rows] == [row["objective"] for row in plain.rows]
    assert find_ending(state.folder, fit_for(2)) is not None


@pytest.mark.filterwarnings("ignore:.*rows are lost")
def test_a_journal_with_a_damaged_row_lacks_this_row_alone(root: Path, payload: bytes) -> None:
    run(root, fit_for(2), payload)
    journal = root / "cells" / "seed=0" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"kind": "row"', b'"kind": "r', 1))
    state = CellState({"seed": 0}, root, fit_for(2))
    assert state.status == "completed", "its steps are made, and the journal alone had the row"
    assert [row["outer_step"] for row in cell_result(state).rows] == [2]
    longer = run(root, fit_for(3), payload)
    assert longer.status == "completed"
    assert [row["outer_step"] for row in cell_result(longer).rows] == [2, 3]


def test_a_node_without_the_folder_says_so(tmp_path: Path, payload: bytes) -> None:
    failure = run_cell(CellTask({"seed": 0}, tmp_path / "a" / "cells" / "seed=0", fit_for(1), 1), payload)
    assert failure is not None
    assert "must be on a file system that all nodes share" in failure.error


def test_a_folder_that_is_still_held_is_waited_for(root: Path, payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may be declared dead before its last process has let go."""
    folder = root / "cells" / "seed=0"
    folder.mkdir(parents=True)
    held, naps = [Journal(folder)], []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        held.pop().close()

    monkeypatch.setattr(worker.time, "sleep", nap)
    assert run(root, fit_for(1), payload).status == "completed"
    assert len(naps) == 1
    monkeypatch.setattr(worker, "BUSY_SECONDS", -1.0)
    with Journal(folder):
        assert "in use by another run" in run_cell(CellTask({"seed": 0}, folder, fit_for(2), 1), payload).error


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda seed: 3, "SettingError: `build` must return a Tuner, got int"),
        (lambda: None, "TypeError: .*unexpected keyword argument 'seed'"),
        (lambda seed: exit(3), "SystemExit: 3"),
    ],
)
def test_what_build_may_do_wrong(root: Path, made: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "loads", lambda data: (made, None))
    state = run(root, fit_for(1), b"")
    assert state.status == "failed"
    assert re.match(words, state.failure.error)
    assert "Traceback" in (state.folder / "error.txt").read_text()


def test_plain_lines_are_throttled_and_tell_failures_once(
    root: Path, payload: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [CellState({"seed": seed}, root, fit_for(1)) for seed in range(2)]
    with display.open_display(True, 1) as shown:
        shown(states)
        assert capsys.readouterr().err == ""
        states[0].end(Failure("ValueError: no", ""))
        shown(states)
        shown(states)
        assert capsys.readouterr().err == "sweep: seed=0 failed: ValueError: no\n"
        states[1].interrupt()
        shown(states)
        shown(states)
        assert capsys.readouterr().err == "sweep: 0/2 cells done, 1 failed, 1 interrupted; 0/2 outer steps\n"
    with display.open_display(None, 1) as silent:
        silent(states)
    assert capsys.readouterr().err == ""


def test_the_live_table_puts_running_cells_first(root: Path) -> None:
    from rich.console import Console

    states = [CellState({"seed": seed}, root, fit_for(5)) for seed in range(30)]
    for state in states[:29]:
        state.end(Failure("no", ""))
    states[29].folder.mkdir(parents=True)
    with Journal(states[29].folder) as journal:
        journal.append("start")
        journal.append("row", outer_step=1, objective=0.25)
    states[29].progress.refresh()
    console = Console(width=100)
    with console.capture() as captured:
        console.print(display.live_table(states, 5))
    lines = captured.get().splitlines()
    assert lines[1].split() == ["seed=29", "running", "1/5", "0.25", "1"]
    assert "and 10 more" in lines[21]
    assert "29 failed" in lines[-1]


def test_the_report_of_cells_that_all_failed(root: Path) -> None:
    state = CellState({"seed": 0, "clip": None}, root, fit_for(1))
    state.end(Failure("ValueError: <no>", "trace"))
    found = SweepResult(root, [cell_result(state)], build, {})
    assert found.status == "failed"
    text = found.write_report().read_text(encoding="utf-8")
    assert "ValueError: &lt;no&gt;" in text
    assert found.history.empty


def test_means_over_seeds_count_only_cells_that_are_done(root: Path, payload: bytes, tmp_path: Path) -> None:
    states = [run(root, fit_for(2), payload, seed) for seed in range(3)]
    failed = CellState({"seed": 3}, root, fit_for(2))
    failed.end(Failure("no", ""))
    found = SweepResult(root, [cell_result(state) for state in [*states, failed]], build, {})
    tables = SweepTables(["seed"], found.table, found.history, found.plain, {"seed=0": ["a warning"]})
    risks = [cell.kept["valid_risk"] for cell in found.cells[:3]]
    mean, error, count = mean_lines(tables)[0]["valid_risk"]
    assert count == 3
    assert mean == pytest.approx(sum(risks) / 3, rel=1e-12)
    assert error == pytest.approx(torch.tensor(risks, dtype=torch.float64).std().item() / 3**0.5, rel=1e-9)
    assert "a warning" in write_sweep_page(tables, tmp_path / "page.html").read_text(encoding="utf-8")
