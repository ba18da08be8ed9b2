"""The page of `pactune report`: everything under a folder, with a summary first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pactune import __version__
from pactune.columns import Row
from pactune.errors import DataError, RunFolderError
from pactune.report.cells import CellResult, read_cell, tables_of
from pactune.report.page import Section, Table, write_page
from pactune.report.runs import HELD_OUT, ReportedRun, read_result, run_of, run_section
from pactune.report.sweep import sweep_sections
from pactune.storage.files import has_content
from pactune.storage.user_paths import input_folder
from pactune.tracking.journal import JOURNAL, read_lines, starts_of
from pactune.tuning.cells import parse_cell_name

__all__ = ["NOTHING", "SUMMARY_HEADER", "Contents", "folders_under", "study_name", "write_report"]

DEEPEST = 8  # levels of folders that are looked at
SWEEP, CELLS = "sweep", "cells"  # the kind of the first line of a sweep's journal, and the folder of its runs
RESULT = "result.json"
SUMMARY_HEADER = ("name", "kind", "status", "kept step", "measured", "plain training", "kept", "tuning pays")
WORDS = (
    "Each row is a run, a grid, a sweep, a saved result or a study under the folder. ± is one standard error, “to” "
    f"goes from the least to the largest number of the cells. Where “measured” names {HELD_OUT}, pt.tune compared "
    "plain training, which has no decay, with tuned models on rows that they were neither trained nor chosen by, and "
    "“kept” is the model that it kept. Elsewhere the numbers are those of the kept step, and plain training is the "
    "same training with λ at its start, at its last step. A study of the paper has Eq. 5 at its last step."
)


class Contents(NamedTuple):
    """Things to show.

    Attributes:
        summary: a row of `SUMMARY_HEADER` for each.
        sections: their sections.
        claimed: folders that need not be looked at any more, with all that is in them.
        unreadable: sentences about files that cannot be read.
    """

    summary: list[list[str]]
    sections: list[Section]
    claimed: set[Path]
    unreadable: list[str]


NOTHING = Contents([], [], set(), [])


def write_report(home: Path, output: Path | None = None, studies: Contents = NOTHING) -> Path:
    """Write one self-contained page about a folder, from its journals and saved results alone.

    Args:
        home: the folder.
        output: the page; `report.html` in the folder by default.
        studies: the studies of the paper in the folder, shown below the user's own runs.

    Returns:
        The page.

    Raises:
        SettingError: there is no such folder.
        DataError: there is nothing to show.
    """
    input_folder(home)
    found = _read_contents(home, studies.claimed)
    summary, unreadable = [*found.summary, *studies.summary], [*found.unreadable, *studies.unreadable]
    if not summary:
        reason = f": {unreadable[0]}" if unreadable else ""
        raise DataError(
            f"{home} holds no run, grid, sweep, saved result or study, so there is nothing to report on{reason}"
        )
    words = [WORDS, *(f"Not shown: {sentence}" for sentence in unreadable)]
    first = Section("Summary", words, [Table(SUMMARY_HEADER, summary)])
    sections = [first, *found.sections, *studies.sections]
    footer = f"pactune {__version__}; every number is read from journals and saved results"
    return write_page(output or home / "report.html", f"pactune report: {home.resolve().name}", sections, footer)


def folders_under(home: Path) -> Iterator[Path]:
    """Yield a folder and all folders under it, parents first. Hidden folders and links are left out."""
    level = [home]
    for _ in range(DEEPEST):
        yield from level
        level = [Path(entry.path) for folder in level for entry in _entries(folder)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [one for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")]
    except OSError:
        return []
    return sorted(found, key=lambda one: one.name)


def study_name(lines: Sequence[Row]) -> str:
    """Return the name of the study that a journal begins; empty if it is no study."""
    return next((str(line["name"]) for line in reversed(starts_of(lines)) if line.get("name")), "")


def _read_contents(home: Path, claimed: set[Path]) -> Contents:
    found = Contents([], [], set(claimed), [])
    for folder in folders_under(home):
        if found.claimed & {folder, *folder.parents}:
            continue
        name = folder.relative_to(home).as_posix() if folder != home else home.resolve().name
        try:
            _add(found, name, folder)
        except RunFolderError as error:
            found.unreadable.append(f"{error}.")
    return found


def _add(found: Contents, name: str, folder: Path) -> None:
    """Add what a folder itself holds."""
    lines = read_lines(folder)
    if any(line["kind"] == SWEEP for line in lines):
        found.claimed.add(folder)
        _add_cells(found, name, "sweep", _sweep_cells(folder, lines))
    elif any(line["kind"] in ("row", "plain row") for line in lines):
        _add_run(found, run_of(name, lines))
    elif study_name(lines):
        found.summary.append([name, "study", _status(lines), "", "", "", "", ""])
        found.sections.append(_study_section(name, lines))
    elif not lines and len(cells := _grid_cells(folder)) > 1:
        found.claimed.update(cell.folder for cell in cells)
        _add_cells(found, name, "grid", cells)
    if has_content(folder / RESULT):
        _add_run(found, read_result(name, folder))


def _add_run(found: Contents, run: ReportedRun) -> None:
    found.summary.append([run.name, run.kind, *run.summary()])
    found.sections.append(run_section(run))


def _add_cells(found: Contents, name: str, kind: str, cells: list[CellResult]) -> None:
    if not cells:
        found.summary.append([name, kind, "no cell has begun", "", "", "", "", ""])
        return
    runs = [run_of(cell.name, read_lines(cell.folder)).summary() for cell in cells]
    counts = {status: [cell.status for cell in cells].count(status) for status in {cell.status for cell in cells}}
    status = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), key=lambda one: -one[1]))
    measured = next((run[2] for run, cell in zip(runs, cells, strict=True) if cell.rows), "")
    same = [run for run in runs if run[2] == measured]
    plain, kept = (_span([run[place] for run in same if run[place]]) for place in (3, 4))
    paid = [run[5] for run in runs].count("yes")
    judged = sum(bool(run[5]) for run in runs)
    pays = f"in {paid} of {judged}" if judged else ""
    found.summary.append([name, f"{kind} of {len(cells)} runs", status, "", measured, plain, kept, pays])
    found.sections.extend(sweep_sections(tables_of(cells), name))


def _span(texts: list[str]) -> str:
    """Return the least and the largest of some numbers that are texts."""
    ordered = sorted(texts, key=lambda words: float(words.split()[0]))
    if not ordered:
        return ""
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0].removesuffix(' %')} to {ordered[-1]}"


def _sweep_cells(folder: Path, lines: Sequence[Row]) -> list[CellResult]:
    """Return the cells of a sweep that have begun. The sweep's own journal knows why a cell failed."""
    told = {line["name"]: line for line in lines if line["kind"] == "cell" and isinstance(line.get("name"), str)}
    cells = []
    for entry in _entries(folder / CELLS):
        cell, line = read_cell(Path(entry.path)), told.get(entry.name, {})
        if line.get("status") == "failed":
            cell = cell._replace(status="failed", error=str(line.get("error", "")))
        cells.append(cell)
    return _alike(cells)


def _grid_cells(folder: Path) -> list[CellResult]:
    """Return the cells of a grid of `fit_grid`: its run folders are named after their values."""
    entries = [one for one in _entries(folder) if "=" in one.name and has_content(Path(one.path) / JOURNAL)]
    keys = {tuple(parse_cell_name(one.name)) for one in entries}
    return _alike([read_cell(Path(one.path)) for one in entries]) if len(keys) == 1 else []


def _alike(cells: list[CellResult]) -> list[CellResult]:
    """Return the cells that have the keys of the first one, and whose values a table can group by."""
    keys = list(cells[0].values) if cells else []
    simple = (str, int, float, bool, type(None))
    return [c for c in cells if list(c.values) == keys and all(isinstance(v, simple) for v in c.values.values())]


def _status(lines: Sequence[Row]) -> str:
    return next((str(line["status"]) for line in reversed(lines) if line["kind"] == "end"), "not finished")


def _study_section(name: str, lines: Sequence[Row]) -> Section:
    """Return the settings and the status of a study whose figures are in its folder."""
    start = [line for line in starts_of(lines) if line.get("name")][-1]
    facts = [[key, str(value)] for key, value in start["settings"].items()]
    facts.append(["began", str(start.get("time", ""))])
    facts.append(["versions", ", ".join(f"{key} {value}" for key, value in start["versions"].items())])
    words = [f"Status: {_status(lines)}. Its figures and numbers are in {name}/."]
    return Section(f"{name} ({start['name']})", words, details=[Table(("settings", ""), facts)])
