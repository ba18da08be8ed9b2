"""Studies as runs in folders: what they are made of, resuming, records, and what is exported."""

import json
from pathlib import Path

import pytest

from pactune.errors import SettingError
from pactune.paper.data import load_images
from pactune.paper.weight_decay import studies
from pactune.paper.weight_decay.cells import Execution
from pactune.paper.weight_decay.records import export_study, read_studies
from pactune.paper.weight_decay.rules import compare, least_norm_row, oracle_row, summarise
from pactune.paper.weight_decay.setting import StudySetting
from pactune.paper.weight_decay.studies import Scale, run_study
from pactune.tracking import read_journal
from pactune.tracking.status import journal_is_finished
from pactune.tuning.cells import cell_name, parse_cell_name

TINY = StudySetting(data="digits", inner_steps=2, lr=1e-2)
SCALE = Scale(outer_steps=3, draws=(0, 1), inits=1)


def run(study, home):
    run_study(study, home, load_images, Execution(progress=False))
    return next(found for found in read_studies(home) if found.name == study.name)


def journals(home):
    """The journals of all runs as they are on the disk."""
    return {path: path.read_bytes() for path in sorted((home / "cells").rglob("journal.jsonl"))}


def numbers(study):
    """The histories without the columns that depend on the clock."""
    clock = ("seconds", "time")
    return [[{k: v for k, v in row.items() if k not in clock} for row in r.rows + r.plain] for r in study.records]


def test_the_papers_amounts():
    table = studies.table(StudySetting(), Scale(draws=tuple(range(12)), inits=1), online=True)
    assert [(g.setting.online, len(g.cells), g.plain) for g in table.groups] == [
        (False, 12, True),
        (False, 12, False),
        (True, 12, False),
    ]
    assert [g.cells[0]["zeta"] for g in table.groups] == [0.0, 1.0e-6, 3.75e-9]
    paths = [group.setting.path for group in studies.truncation(StudySetting(), Scale()).groups]
    assert paths == ["truncated-0", "truncated-1", "windowed-10", "windowed-100", "windowed-1000"]
    assert len(studies.restart(StudySetting(), Scale()).groups) == 6
    assert table.name == "table-linear-mnist"
    online = studies.curves(StudySetting(online=True, protocol="paper"), Scale(draws=(3,)), [])
    assert online.name == "weight-decay-linear-mnist-online-paper-protocol-draw3"


def test_finished_runs_are_never_run_again(tmp_path):
    first = run(studies.table(TINY, SCALE), tmp_path)
    assert (first.asked, first.finished) == (4, 4)
    before = journals(tmp_path)
    assert len(before) == 4
    assert run(studies.table(TINY, SCALE), tmp_path).records == first.records
    run(studies.zeta_grid("scan", TINY, SCALE, [0.0, 1e-6]), tmp_path)
    assert journals(tmp_path) == before, "another study in the folder shares the runs"


def test_a_longer_study_goes_on_and_a_shorter_one_reads_less(tmp_path):
    longer = Scale(outer_steps=5, draws=(0, 1), inits=1)
    short = run(studies.table(TINY, SCALE), tmp_path / "parts")
    found = run(studies.table(TINY, longer), tmp_path / "parts")
    assert numbers(found) == numbers(run(studies.table(TINY, longer), tmp_path / "whole"))
    kinds = [line["kind"] for line in read_journal(next(iter(journals(tmp_path / "parts"))).parent)]
    assert "resume" in kinds
    assert kinds.count("row") == 5
    assert numbers(run(studies.table(TINY, SCALE), tmp_path / "parts")) == numbers(short)


def test_plain_training_stands_beside_zeta_0_only(tmp_path):
    study = run(studies.table(TINY, SCALE), tmp_path)
    assert {(r.cell["zeta"], len(r.plain)) for r in study.records} == {(0.0, 3), (1e-6, 0)}
    folder = tmp_path / "cells" / TINY.name / cell_name({"zeta": 0.0, "draw": 0, "init": 0})
    assert {"row", "plain row", "start", "end"} == {line["kind"] for line in read_journal(folder)}


def test_auto_is_run_and_its_kept_step_counts(tmp_path):
    scale = Scale(outer_steps=2, draws=(0,), inits=1)
    study = run(studies.table(TINY, scale, auto=True), tmp_path)
    (auto,) = study.where(zeta="auto")
    assert auto.kept["outer_step"] == auto.end["kept_step"]
    assert summarise(study).values["auto"] == {(0, 0): auto.kept["test_accuracy"]}


def test_export_says_what_the_journals_say(tmp_path):
    study = run(studies.table(TINY, SCALE), tmp_path / "runs")
    path = export_study(study, tmp_path / "json")
    (back,) = read_studies(tmp_path / "json")
    assert summarise(back).interval("regularized") == pytest.approx(summarise(study).interval("regularized"), rel=1e-4)
    assert (back.finished, back.name, back.settings) == (study.finished, study.name, study.settings)
    assert [r.cell for r in back.records] == [r.cell for r in study.records]
    assert path.stat().st_size < 12_000
    assert "checkpoint" not in path.read_text()
    assert json.loads(path.read_text())["records"][0]["facts"]["versions"]["torch"]


def test_a_folder_that_is_not_there_is_said():
    with pytest.raises(SettingError, match="there is no folder"):
        read_studies(Path("/nowhere"))


def test_names_of_cells_come_back():
    for cell in ({"zeta": 5e-3, "draw": 11, "init": 0}, {"zeta": "auto", "draw": 0, "init": 2}):
        assert parse_cell_name(cell_name(cell)) == cell


@pytest.mark.parametrize(
    ("status", "rows", "over"),
    [("completed", 3, True), ("completed", 2, False), ("diverged", 1, True), ("interrupted", 3, False)],
)
def test_when_a_run_is_over(status, rows, over):
    lines = [{"kind": "row", "outer_step": step} for step in range(1, rows + 1)]
    assert journal_is_finished([*lines, {"kind": "end", "status": status}], 3) is over
    assert not journal_is_finished(lines, rows), "without an end it is not"


def rows_of(*values):
    return [
        {"outer_step": i, "valid_accuracy": v, "weight_norm": n, "test_accuracy": t}
        for i, (v, n, t) in enumerate(values, start=1)
    ]


def test_least_norm_is_among_the_steps_of_maximal_validation_accuracy():
    rows = rows_of((0.9, 1.0, 0.7), (1.0, 5.0, 0.6), (1.0, 3.0, 0.5), (1.0, 4.0, 0.8))
    assert least_norm_row(rows)["outer_step"] == 3
    assert oracle_row(rows)["outer_step"] == 4


def test_gains_are_paired(tmp_path):
    study = run(studies.table(TINY, SCALE), tmp_path)
    records = [
        record._replace(rows=[{**row, "test_accuracy": 0.5 + 0.1 * draw + gain} for row in record.rows])
        for record in study.records
        for draw in [record.cell["draw"]]
        for gain in [0.02 if record.cell["zeta"] else 0.0]
    ]
    found = compare(summarise(study._replace(records=records)), "regularized", "zero")
    assert (found.wins, found.of) == (2, 2)
    assert found.gain == pytest.approx({"mean": 0.02, "low": 0.02, "high": 0.02})
    assert compare(summarise(study), "online", "zero") is None


def test_unfinished_studies_are_cut_where_all_runs_are(tmp_path):
    study = run(studies.table(TINY, SCALE), tmp_path)
    cut = [r._replace(rows=r.rows[: 1 + r.cell["draw"]], end={}) for r in study.records]
    found = summarise(study._replace(records=cut))
    assert found.steps == 1
    assert found.values["zero"][1, 0] == cut[1].rows[0]["test_accuracy"]


def test_plain_training_that_stopped_early_is_not_compared(tmp_path):
    study = run(studies.table(TINY, SCALE), tmp_path)
    assert len(summarise(study).values["plain"]) == len(SCALE.draws) * SCALE.inits
    short = [r._replace(plain=r.plain[:1]) for r in study.records]
    assert "plain" not in summarise(study._replace(records=short)).values
