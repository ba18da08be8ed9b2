"""Sections for run folders of `Tuner.fit`, and short ones for studies that have another page, from their journals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pactune.columns import PREFIXES, RISK, Row, column_names, metric_names
from pactune.drawing import Panel, history_line
from pactune.report.page import Section, Table
from pactune.tracking.journal import JOURNAL, read_lines, starts_of

__all__ = ["run_sections"]

SHOWN = ("inner", "inner_steps", "outer", "objective", "hypergradient", "path_hypergradient", "online", "restart")


def run_sections(home: Path) -> list[Section]:
    """Return a section for every run or study in the folder itself and in its sub-folders."""
    folders = [path.parent for path in (home / JOURNAL, *sorted(home.glob(f"*/{JOURNAL}"))) if path.exists()]
    found = [(folder, read_lines(folder)) for folder in folders]
    runs = [_run_section(folder.name or str(folder), lines) for folder, lines in found if _is_run(lines)]
    return runs + [_study_section(folder, lines) for folder, lines in found if _is_study(lines)]


def _is_run(lines: Sequence[Row]) -> bool:
    return any(line["kind"] == "row" and "objective" in line for line in lines)


def _is_study(lines: Sequence[Row]) -> bool:
    return any("name" in line and "groups" not in line["settings"] for line in starts_of(lines))


def _study_section(folder: Path, lines: Sequence[Row]) -> Section:
    """Return the settings and the status of a study whose figures are in its folder."""
    start = [line for line in starts_of(lines) if "name" in line][-1]
    end = next((line for line in reversed(lines) if line["kind"] == "end"), {"status": "running", "time": ""})
    facts = [[name, str(value)] for name, value in start["settings"].items()]
    facts += [["began", start.get("time", "")], ["ended", end.get("time", "")]]
    facts.append(["versions", ", ".join(f"{k} {v}" for k, v in start["versions"].items())])
    words = [f"Status: {end['status']}. Its figures and numbers are in {folder.name}/."]
    return Section(start["name"], words, details=[Table(("settings", ""), facts)])


def _run_section(name: str, lines: Sequence[Row]) -> Section:
    tuned, plain = (_history(lines, kind) for kind in ("row", "plain row"))
    figures = [_figure(title, columns, tuned, plain) for title, columns in _families(tuned or plain).items()]
    end = next((line for line in reversed(lines) if line["kind"] == "end"), None)
    words = [f"Status: {end['status']}." if end else "The run has no end yet."]
    words += [f"Verdict: {end['verdict']}."] if end and end.get("verdict") else []
    return Section(name, words, [], [figure for figure in figures if figure.lines], [_facts(lines, tuned)])


def _families(rows: list[Row]) -> dict[str, list[str]]:
    """Return the columns of each figure by its title."""
    names = [RISK, *metric_names(column_names(rows))]
    families = {name.replace("_", " "): [f"{prefix}{name}" for prefix in PREFIXES] for name in names}
    return {**families, "regularizer √Y": ["regularizer"]}


def _history(lines: Sequence[Row], kind: str) -> list[Row]:
    by_step = {line["outer_step"]: line for line in lines if line["kind"] == kind}
    return [by_step[step] for step in sorted(by_step)]


def _figure(title: str, columns: Sequence[str], tuned: list[Row], plain: list[Row]) -> Panel:
    lines = []
    for color, column in enumerate(columns):
        part = column.partition("_")[0] if len(columns) > 1 else column
        for label, rows, dash in ((f"{part}, tuned", tuned, "solid"), (f"{part}, plain", plain, "dot")):
            lines.append(history_line(label, rows, column, color, dash))
    return Panel(title, "outer step", title, [line for line in lines if line.x])


def _facts(lines: Sequence[Row], rows: Sequence[Row]) -> Table:
    start = next((line for line in reversed(lines) if line["kind"] == "start"), {})
    settings, versions = start.get("settings", {}), start.get("versions", {})
    facts = [[name, str(settings[name])] for name in SHOWN if name in settings]
    facts += [["seed", str(start.get("seed"))], ["outer steps", str(len(rows))]]
    facts += [["seconds", f"{rows[-1]['seconds']:.1f}"]] if rows and "seconds" in rows[-1] else []
    return Table(("settings", ""), [*facts, ["versions", ", ".join(f"{k} {v}" for k, v in versions.items())]])
