"""Single runs and saved results: their numbers, and the section of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pactune.columns import PREFIXES, Row, column_names, column_title, judged_column, metric_names, value_text
from pactune.report.cells import history_of
from pactune.report.comparison import comparison_rows, comparison_table
from pactune.report.page import Section, Table
from pactune.results.plots import history_panels
from pactune.results.saving import read_document
from pactune.storage.schema import SchemaError, flag, listed, number, record, text

__all__ = ["HELD_OUT", "ReportedRun", "read_result", "run_of", "run_section"]

SHOWN = ("inner", "inner_steps", "outer", "objective", "hypergradient", "path_hypergradient", "online", "restart")
HELD_OUT = "held-out rows"  # what a comparison of `pt.tune` is measured on
COMPARISON = "comparison"  # the kind of the line in which `pt.tune` compares its procedures
PAYS = {True: "yes", False: "no", None: "unclear"}
_check_comparison = listed(
    record({"model": text, "standard_error": number, "gain": number, "gain_error": number, "kept": flag})
)


class ReportedRun(NamedTuple):
    """A run, from its journal or from a saved result.

    Attributes:
        name: of its folder.
        kind: "run", "pt.tune" or "saved result".
        status: how it ended, or "not finished".
        rows: its history.
        plain_rows: the history of the run with λ at its start.
        kept_run: "tuned" or "plain".
        kept_step: the outer step that was kept; 0 if there is none.
        zeta: ζ.
        verdict: the verdict in words.
        pays: "yes", "no", "unclear", or empty if the journal does not say.
        comparison: the procedures that `pt.tune` compared.
        facts: settings, versions and times by name.
        notes: sentences about the data, which `pactune tune` stores with its result.
    """

    name: str
    kind: str
    status: str
    rows: Sequence[Row]
    plain_rows: Sequence[Row]
    kept_run: str
    kept_step: int
    zeta: float
    verdict: str
    pays: str
    comparison: Sequence[Row]
    facts: dict[str, str]
    notes: Sequence[str] = ()

    @property
    def kept(self) -> Row:
        """The row of the kept outer step; of an unfinished run, the last one."""
        rows = self.plain_rows if self.kept_run == "plain" else self.rows
        last = rows[-1] if rows and not self.kept_step else {}
        return next((row for row in rows if row["outer_step"] == self.kept_step), last)

    @property
    def judged(self) -> str:
        """The column that judges the run: the first metric of the test set, else of the validation set, else a risk."""
        found = judged_column(self.kept)
        names = [f"valid_{name}" for name in metric_names(self.kept)]
        return found or next((name for name in (*names, "valid_risk") if name in self.kept), "objective")

    def summary(self) -> list[str]:
        """Return status, steps, the name of the number, plain training, the kept step, and if tuning paid."""
        rows = self.plain_rows if self.kept_run == "plain" else self.rows
        steps = f"{self.kept_step or '–'} of {len(rows)}"
        if self.comparison:
            table = comparison_rows(self.comparison)
            kept = next((row for row in table if row[-1]), table[-1])
            measured = f"{list(self.comparison[0])[1]}, {HELD_OUT}"
            return [self.status, steps, measured, table[0][1], f"{kept[1]} ({kept[0]})", self.pays]
        plain = self.plain_rows[-1].get(self.judged) if self.plain_rows else None
        numbers = [value_text(self.judged, plain), value_text(self.judged, self.kept.get(self.judged))]
        return [self.status, steps, column_title(self.judged), *numbers, self.pays]


def run_of(name: str, lines: Sequence[Row]) -> ReportedRun:
    """Return the run of a journal."""
    rows, plain = history_of(lines, "row"), history_of(lines, "plain row")
    end = next((line for line in reversed(lines) if line["kind"] == "end"), {})
    found = next((line for line in reversed(lines) if line["kind"] == COMPARISON), {})
    comparison = _comparison(found.get("rows"))
    kept_run = str(end.get("kept_run", "tuned"))
    if comparison and found.get("tuned") is False:  # λ stayed where it was, so this is not a tuned run
        rows, plain, kept_run = [], rows, "plain"
    return ReportedRun(
        name,
        "pt.tune" if comparison else "run",
        str(end.get("status", "not finished")),
        rows,
        plain,
        kept_run,
        end.get("kept_step", 0),
        end.get("zeta") or 0.0,
        str(end.get("verdict", "")),
        _pays(end),
        comparison,
        _facts(lines, rows or plain),
    )


def read_result(name: str, folder: Path) -> ReportedRun:
    """Return the run of a result that `Result.save` wrote.

    Raises:
        RunFolderError: the file is damaged, or of another format.
    """
    body = read_document(folder)
    settings = body.get("settings", {})
    facts = {key: str(settings[key]) for key in SHOWN if key in settings}
    return ReportedRun(
        name,
        "saved result",
        body["status"],
        body["rows"],
        body["plain_rows"],
        body["kept_run"],
        body["kept_step"],
        body["zeta"],
        body.get("verdict", ""),
        _pays(body),
        _comparison(body.get("comparison")),
        facts,
        _notes(settings.get("notes")),
    )


def run_section(run: ReportedRun) -> Section:
    """Return the section of a run: its verdict, its numbers, its curves, and its settings."""
    words = [f"Kind: {run.kind}. Status: {run.status}."]
    words += [*run.notes, *([f"{run.verdict[:1].upper()}{run.verdict[1:]}."] if run.verdict else [])]
    tables = [_numbers(run)]
    if run.comparison:
        tables.insert(0, comparison_table(run.comparison))
        words.append("± is one standard error.")
    details = [Table(("settings", ""), [[key, value] for key, value in run.facts.items()])] if run.facts else []
    return Section(run.name, words, tables, history_panels(run), details)


def _numbers(run: ReportedRun) -> Table:
    """Return risks and metrics of the first step, of the last step with λ at its start, and of the kept step."""
    columns: dict[str, Row] = {"before tuning (step 1)": run.rows[0]} if run.rows else {}
    if run.plain_rows and run.kept_run != "plain":
        words = "λ fixed" if run.comparison else "plain training"
        columns[f"{words} (step {run.plain_rows[-1]['outer_step']})"] = run.plain_rows[-1]
    step = f"kept (step {run.kept_step})" if run.kept_step else "last step"
    columns[step] = run.kept
    names = [name for name in column_names([run.kept]) if name.startswith(PREFIXES)]
    rows = [[column_title(name), *(value_text(name, row.get(name)) for row in columns.values())] for name in names]
    return Table(("", *columns), rows)


def _pays(found: Row) -> str:
    """Return in a word if tuning paid: yes, no, unclear; empty if nothing is said."""
    return PAYS[found["pays"]] if found.get("verdict") and "pays" in found else ""


def _comparison(found: Any) -> list[Row]:
    """Return the rows of a comparison; none if they are not as pactune writes them."""
    try:
        _check_comparison(found, COMPARISON)
        for row in found:
            number(row[list(found[0])[1]], COMPARISON)
    except (SchemaError, KeyError, IndexError):
        return []
    return list(found)


def _notes(found: Any) -> list[str]:
    """Return the stored sentences; none if they are not as pactune writes them."""
    return found if isinstance(found, list) and all(isinstance(note, str) for note in found) else []


def _facts(lines: Sequence[Row], rows: Sequence[Row]) -> dict[str, str]:
    start = next((line for line in reversed(lines) if line["kind"] == "start"), {})
    settings, versions = start.get("settings", {}), start.get("versions", {})
    facts = {name: str(settings[name]) for name in SHOWN if name in settings}
    facts |= {"seed": str(start.get("seed", ""))}
    facts |= {"seconds": f"{rows[-1]['seconds']:.1f}"} if rows and "seconds" in rows[-1] else {}
    facts |= {"began": str(start.get("time", "")), "versions": ", ".join(f"{k} {v}" for k, v in versions.items())}
    return {name: value for name, value in facts.items() if value}
