"""What an outer step writes and keeps does not grow with the number of outer steps before it."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pactune as pt
from pactune.columns import History, column_names
from pactune.tracking import read_journal, recorder
from pactune.tracking.checkpoint import list_checkpoints
from pactune.tracking.recorder import CheckpointSchedule
from pactune.tracking.row_log import RowLog, RowMark, find_rows


def row(step: int, **columns: float) -> dict[str, Any]:
    return {"outer_step": step, "risk": 0.5 / step, "seconds": 0.1 * step, **columns}


def test_a_checkpoint_does_not_grow_with_the_rows(make: Any, tmp_path: Path) -> None:
    sizes = {}
    for steps in (3, 40):
        make().fit(steps, run_dir=tmp_path / str(steps), progress=False)
        sizes[steps] = list_checkpoints(tmp_path / str(steps))[0].stat().st_size
    assert sizes[40] - sizes[3] < 64, "a few digits"
    assert sizes[3] > 1000


def test_only_new_rows_are_looked_at() -> None:
    asked: list[slice] = []

    class Watched(History):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return super().__getitem__(index)

    log, history = RowLog("row"), Watched()
    for step in range(1, 6):
        history.append(row(step))
        assert log.advance(history) == [{"kind": "row", **row(step)}]
    assert [index.start for index in asked] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("interrupted_at", [2, 5])
def test_the_best_step_is_the_same_after_a_resume(classes: Any, tmp_path: Path, interrupted_at: int) -> None:
    settings: dict[str, Any] = {"keep": "best-objective", "progress": False}

    def make_one() -> pt.Tuner:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        hyper = pt.WeightDecay(model)
        data = {"train": classes(12, 1), "valid": classes(10, 2), "batch_size": 3, "valid_batch_size": 3}
        problem = pt.Problem(model, hyper, **data, loss=nn.functional.cross_entropy)
        outer = torch.optim.SGD(hyper.parameters(), lr=0.01)
        return pt.Tuner(problem, inner=pt.SGD(0.5), inner_steps=4, outer=outer, objective=pt.PACBayes(0.05))

    whole = make_one().fit(8, **settings)
    objectives = [one["objective"] for one in whole.rows]
    assert whole.kept_step == 1 + objectives.index(min(objectives))
    assert whole.kept_step not in (1, 8), "else the test shows nothing"
    make_one().fit(interrupted_at, run_dir=tmp_path, **settings)
    assert make_one().fit(8, run_dir=tmp_path, resume=True, **settings).kept_step == whole.kept_step


def test_writing_pauses_once_it_has_taken_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now)
    schedule, written = CheckpointSchedule(), []
    for step in range(2000):
        now += 0.01  # of training
        if schedule.is_due(step):
            written.append(step)
            with schedule.timed():
                now += 0.02
    assert written[:40] == list(range(40)), "one second of writing is free"
    pauses = [b - a for a, b in pairwise(written[60:])]
    assert set(pauses) <= {119, 120, 121}  # 60 times 0.02 seconds, in steps of 0.01 seconds


def test_rows_are_on_the_disk_before_their_checkpoint(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    extend, save = recorder.Journal.extend, recorder.save_checkpoint

    def extended(self: Any, rows: Any, *, sync: bool = True) -> None:
        rows = list(rows)
        events.extend(f"{one['kind']} {'synced' if sync else 'written'}" for one in rows if "row" in one["kind"])
        extend(self, rows, sync=sync)

    monkeypatch.setattr(recorder.Journal, "extend", extended)
    monkeypatch.setattr(recorder, "save_checkpoint", lambda *a, **k: events.append("checkpoint") or save(*a, **k))
    monkeypatch.setattr(CheckpointSchedule, "is_due", lambda self, step: step != 1)
    make().fit(2, run_dir=tmp_path, progress=False, plain_steps=0)
    assert events == ["checkpoint", "row written", "row synced", "checkpoint"]
    assert [line["outer_step"] for line in read_journal(tmp_path) if line["kind"] == "row"] == [1, 2]


def test_a_history_is_small_and_gives_its_rows_back() -> None:
    names = [f"valid_metric_{i}" for i in range(12)]
    rows = [
        row(step, **({name: math.sin(step + i) for i, name in enumerate(names)} if step % 3 else {}))
        for step in range(1, 30001)
    ]
    tracemalloc.start()
    history = History(rows)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / len(rows) < 200  # bytes: at most 15 numbers and two of the place, 8 bytes each, and some reserve
    assert history == rows
    assert history[-2:] == rows[-2:]
    assert type(history[4]["outer_step"]) is int
    assert column_names(history) == list(rows[0])
    with pytest.raises(IndexError):
        history[30000]


def test_rows_up_to_a_mark() -> None:
    rows = [row(step) for step in (1, 2, 3)]
    mark = RowMark()
    for one in rows:
        mark = mark.after(one)
    lines = [{"kind": "row", "time": "t", **one} for one in rows]
    assert find_rows("row", [*lines, {"kind": "row", **row(4)}], mark) == (rows, True)
    assert find_rows("row", [{"kind": "row", **row(2, risk=9.0)}, *lines], mark) == (rows, True), "made again"
    assert find_rows("row", [*lines, {"kind": "row", **row(2, risk=9.0)}], mark) == (rows, True), "added later"
    assert find_rows("row", lines[1:], mark) == (rows[1:], False)
    slower = [{**line, "seconds": 99.0} for line in lines]
    assert find_rows("row", slower, mark)[1], "times do not count"
