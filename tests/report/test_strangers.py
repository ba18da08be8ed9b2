"""Studies of strangers: names lead nowhere else, and what is not as pactune writes it is named."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import pactune as pt
from pactune.paper.contents import study_contents
from pactune.paper.weight_decay.records import export_study, read_studies
from pactune.report.folder import write_report
from pactune.report.page import write_page
from pactune.tracking import Journal

STORED = Path(__file__).parents[2] / "results" / "weight-decay" / "truncation-linear-mnist.json"


def report_on(home: Path, output: Path | None = None) -> Path:
    """Write the page of a folder as `pactune report` does."""
    return write_report(home, output, study_contents(home))


@pytest.fixture(scope="module", name="document")
def document_fixture() -> dict[str, Any]:
    return json.loads(STORED.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def stored(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "a/b", "", ".x", "x\0", 3, None, ["x"], "x" * 400])
def test_a_name_is_no_path(name: Any, document: dict[str, Any], tmp_path: Path) -> None:
    home = stored(tmp_path / "home", {**document, "name": name})
    with pytest.raises(pt.DataError, match="holds no study that pactune wrote: a name in a run folder must be"):
        read_studies(home)
    (study,) = read_studies(stored(tmp_path / "home", document))
    with pytest.raises(pt.RunFolderError, match="a name in a run folder must be"):
        export_study(study._replace(name=name), tmp_path / "out" / "deep")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_the_command_exports_into_its_folder_only(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pactune.cli import main

    home = stored(tmp_path / "home", {**document, "name": "../../x"})
    monkeypatch.setattr(sys, "argv", ["pactune", "report", str(home), "--export", str(tmp_path / "a" / "b")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "a name in a run folder must be" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


def test_an_exported_study_keeps_numbers_that_json_has_not(document: dict[str, Any], tmp_path: Path) -> None:
    (study,) = read_studies(stored(tmp_path / "home", document))
    rows = [{**study.records[0].rows[0], "test_risk": float("nan"), "train_risk": float("inf")}]
    changed = study._replace(records=[study.records[0]._replace(rows=rows)])
    export_study(changed, tmp_path / "out")
    ((run,),) = [found.records for found in read_studies(tmp_path / "out")]
    assert run.rows[0]["train_risk"] == float("inf")
    assert run.rows[0]["test_risk"] != run.rows[0]["test_risk"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every field outside long columns."""
    parts = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value[:1]))
        if isinstance(value, list)
        else []
    )
    return (
        [path, *(found for key, part in parts for found in places(part, (*path, key)))]
        if path
        else [found for key, part in parts for found in places(part, (key,))]
    )


WRONG = (None, True, -1, 10**400, "x", [], {}, [1, "a"], {"a": 1})


def test_any_field_may_be_anything(document: dict[str, Any], tmp_path: Path) -> None:
    """A study is shown, or refused by a DataError; nothing else comes out of it."""
    short = {**document, "records": document["records"][:1]}
    refused = 0
    for number, path in enumerate(places(short)):
        changed = copy.deepcopy(short)
        place: Any = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = WRONG[number % len(WRONG)]
        try:
            report_on(stored(tmp_path / "home", changed), tmp_path / "page.html")
        except pt.DataError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("text", ['{"format": 1, "format": 2}', '{"format": ' + "[" * 50_000, '{"format": NaN}'])
def test_json_that_is_read_in_two_ways(text: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(pt.DataError, match="is not JSON"):
        read_studies(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "study.json")
    with pytest.raises(pt.RunFolderError, match="it is a FIFO"):
        read_studies(tmp_path)


@pytest.mark.parametrize("groups", [3, [3], [{"folder": "../x", "setting": {}, "cells": []}], [{"folder": 3}]])
def test_a_journal_leads_nowhere_else(groups: Any, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    with Journal(tmp_path / "study") as journal:
        journal.append("start", name="table", settings={"groups": groups, "outer_steps": 3}, versions={})
    with pytest.raises(pt.DataError, match="holds no study that pactune wrote"):
        report_on(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "start", "name": "x", "settings": 3, "versions": {}},
        {"kind": "start", "name": 3, "settings": {}, "versions": {}},
        {"kind": "start", "name": "x", "settings": {}},
        {"kind": "end", "status": ["x"]},
        {"kind": "row", "objective": "x", "outer_step": 1},
        {"kind": "row", "objective": 1.0},
    ],
)
def test_a_line_that_breaks_the_rules_is_left_out(line: dict[str, Any], tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append("start", name="fine", settings={"seeds": 3}, versions={"pactune": "1"})
        journal.extend([line])
    text = report_on(tmp_path).read_text(encoding="utf-8")
    assert "(fine)</h2>" in text


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "x\0y"])
def test_a_folder_that_the_system_refuses(name: str) -> None:
    with pytest.raises(pt.SettingError, match="there is no folder"):
        report_on(Path(name))


def test_a_page_must_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pt.RunFolderError, match="it is a folder"):
        write_page(Path(""), "page", [], "")
