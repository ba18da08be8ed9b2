"""Studies and their runs as records, read from journals or from the small JSON files exported from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pactune.columns import Row
from pactune.errors import DataError, RunFolderError
from pactune.paper.weight_decay.record_schema import COLUMNS, check_groups, check_run, check_study
from pactune.report.folder import folders_under
from pactune.storage.documents import decode_floats, encode_floats, parse_json
from pactune.storage.files import check_name, folder_inside, has_content, make_folder, read_plain, write_atomically
from pactune.storage.schema import SchemaError, count
from pactune.storage.user_paths import input_folder
from pactune.tracking.journal import JOURNAL, read_lines, starts_of
from pactune.tracking.status import journal_is_finished
from pactune.tuning.cells import Cell, find_cells

__all__ = ["CELLS", "RunRecord", "StudyRecord", "export_study", "read_studies"]

CELLS = "cells"  # folder of all runs; studies share them
FORMAT = "pactune study 1"
EXPORTED = re.compile(rb'\s*\{\s*"format"\s*:')  # the beginning of an exported file
RUNNING = {"status": "running"}


class RunRecord(NamedTuple):
    """One run.

    Attributes:
        setting: the settings of its grid.
        cell: its ζ, draw of the images and initial weights.
        rows: its history, a row per outer step.
        plain: the history of plain training beside it.
        end: status, kept run, kept step and ζ; empty while it runs.
        facts: seed, versions, device and seconds.
    """

    setting: Row
    cell: Cell
    rows: list[Row]
    plain: list[Row]
    end: Row
    facts: Row

    def column(self, name: str) -> list[float]:
        """Return a column of the history."""
        return [float(row[name]) for row in self.rows]

    @property
    def kept(self) -> Row:
        """The row of the kept outer step, of the tuned or of the plain run."""
        rows = self.plain if self.end.get("kept_run") == "plain" else self.rows
        return next((row for row in rows if row["outer_step"] == self.end.get("kept_step")), {})


class StudyRecord(NamedTuple):
    """A study and its runs.

    Attributes:
        item: the name of its command.
        name: the name of its folder.
        settings: its settings.
        records: the runs that have begun.
        asked: number of runs that it asks for.
        finished: number of runs that are finished.
        facts: versions, the times of its beginning and end, and its status.
    """

    item: str
    name: str
    settings: Row
    records: list[RunRecord]
    asked: int
    finished: int
    facts: Row

    def where(self, **wanted: Any) -> list[RunRecord]:
        """Return the runs with these values in their setting or cell."""
        return [r for r in self.records if all({**r.setting, **r.cell}.get(k) == v for k, v in wanted.items())]


def read_studies(home: Path) -> list[StudyRecord]:
    """Return every study under a folder: those in run folders, and those exported as JSON.

    Raises:
        SettingError: there is no such folder.
        DataError: a study does not fit the schema.
        RunFolderError: a journal or an exported file is not a plain file.
    """
    input_folder(home)
    folders = list(folders_under(home))
    found = [_read_study(folder) for folder in folders if has_content(folder / JOURNAL)]
    exported = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    return [study for study in found if study is not None] + list(_read_exported(exported))


def export_study(study: StudyRecord, folder: Path) -> Path:
    """Write a study as one small JSON file, from which `read_studies` reads it again.

    Raises:
        RunFolderError: the name of the study cannot be that of a file, or the file cannot be written.
    """
    path = folder / f"{check_name(study.name)}.json"
    runs = [
        {
            "setting": record.setting,
            "cell": record.cell,
            "end": record.end,
            "facts": record.facts,
            "rows": _columns(record.rows),
            "plain": _columns(record.plain),
        }
        for record in study.records
    ]
    document = encode_floats({"format": FORMAT, **study._asdict(), "records": runs})
    make_folder(folder, "the folder")
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    write_atomically(path, (text + "\n").encode())
    return path


def _read_study(folder: Path) -> StudyRecord | None:
    """Return the study of a run folder; None if the folder holds something else."""
    lines = read_lines(folder)
    starts = [line for line in starts_of(lines) if "groups" in line["settings"]]
    if not starts:
        return None
    with _checked(folder / JOURNAL):
        settings = dict(starts[-1]["settings"])
        groups = settings.pop("groups")
        check_groups(groups, "groups")
        count(settings.get("outer_steps"), "outer_steps")
        steps = settings["outer_steps"]
        records, finished = [], 0
        for group in groups:
            for cell, path in find_cells(folder_inside(folder.parent, CELLS, group["folder"]), group["cells"]):
                journal = read_lines(path)
                finished += journal_is_finished(journal, steps)
                records.append(_record(group["setting"], cell, journal, steps))
        endings = [line for line in lines if line["kind"] == "end"]
        facts = {"versions": starts[-1]["versions"], "began": starts[0].get("time", "")}
        facts |= {"ended": endings[-1].get("time", ""), "status": endings[-1]["status"]} if endings else RUNNING
        asked = sum(len(group["cells"]) for group in groups)
        name = folder.resolve().name
        study = StudyRecord(starts[-1].get("name", ""), name, settings, records, asked, finished, facts)
        check_study(study)
    return study


@contextmanager
def _checked(path: Path) -> Iterator[None]:
    """Add the name of the file to an error about its content."""
    try:
        yield
    except (SchemaError, RunFolderError) as error:
        raise DataError(f"{path} holds no study that pactune wrote: {error}; remove it or export it again") from error


def _record(setting: Row, cell: Cell, journal: Sequence[Row], outer_steps: int) -> RunRecord:
    start = next((line for line in journal if line["kind"] == "start"), {})
    end: Row = next((line for line in reversed(journal) if line["kind"] == "end"), {})
    rows, plain = (_history(journal, kind, outer_steps) for kind in ("row", "plain row"))
    facts = {"seed": start.get("seed"), "versions": start.get("versions", {})}
    facts |= {"device": start.get("settings", {}).get("device"), "seconds": rows[-1].get("seconds") if rows else 0.0}
    kept: Row = {name: end[name] for name in ("status", "kept_run", "kept_step", "zeta", "verdict") if name in end}
    return RunRecord(setting, cell, rows, plain, kept, facts)


def _history(journal: Iterable[Row], kind: str, outer_steps: int) -> list[Row]:
    by_step = {line["outer_step"]: line for line in journal if line["kind"] == kind}
    return [by_step[step] for step in sorted(by_step) if step <= outer_steps]


def _read_exported(paths: Iterable[Path]) -> Iterable[StudyRecord]:
    for path in paths:
        if not EXPORTED.match(read_plain(path, most=100)):  # another JSON file, which may be large
            continue
        try:
            document = decode_floats(parse_json(read_plain(path)))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not JSON: {error}; remove it or export it again") from error
        if isinstance(document, dict) and document.get("format") == FORMAT:
            with _checked(path):
                yield _exported(document)


def _exported(document: Row) -> StudyRecord:
    """Return the study of an exported document."""
    missing = [name for name in StudyRecord._fields if name not in document]
    if missing or not isinstance(document["records"], list):
        raise SchemaError(f"it lacks {', '.join(missing) or 'a list of records'}")
    for i, run in enumerate(document["records"]):
        check_run(run, f"records[{i}]")
    fields = ({name: run[name] for name in RunRecord._fields} for run in document["records"])
    records = [RunRecord(**{**run, "rows": _rows(run["rows"]), "plain": _rows(run["plain"])}) for run in fields]
    study = StudyRecord(**{**{name: document[name] for name in StudyRecord._fields}, "records": records})
    check_study(study)
    return study


def _columns(rows: Sequence[Row]) -> dict[str, list[float]]:
    present = [name for name in COLUMNS if rows and name in rows[0]]
    return {name: [_short(row[name]) for row in rows] for name in present}


def _rows(columns: dict[str, list[float]]) -> list[Row]:
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise SchemaError(f"columns must be of the same length, got {sorted(lengths)}")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.5g}")
