"""A result in a few lines: as text, and as a small table for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from pactune.columns import PREFIXES, Row, column_title

if TYPE_CHECKING:
    from pactune.results.result import Result

__all__ = ["ResultSummary", "summarize"]

ENDINGS = {
    "completed": "completed",
    "converged": "converged",
    "interrupted": "interrupted by Ctrl-C",
    "diverged": "diverged",
}


class ResultSummary(NamedTuple):
    """The words and numbers of a summary.

    Attributes:
        run: how the run ended, after how many steps, in what time.
        kept: the step that was kept.
        titles: the titles of the columns of numbers.
        numbers: for every risk and metric its name and a number per column.
        verdict: the verdict.
    """

    run: str
    kept: str
    titles: list[str]
    numbers: list[tuple[str, list[str]]]
    verdict: str

    def text(self) -> str:
        """Return the summary as plain text."""
        lines = [["", *self.titles], *([name, *values] for name, values in self.numbers)] if self.numbers else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        return "\n".join(part for part in (self.run, self.kept, *table, self.verdict) if part)

    def html(self) -> str:
        """Return the summary as HTML; every text is escaped."""
        head = "".join(f"<th>{escape(title)}</th>" for title in ("", *self.titles))
        rows = [
            f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
            for name, values in self.numbers
        ]
        table = f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else ""
        return f"<div><p>{escape(self.run)}<br>{escape(self.kept)}</p>{table}<p>{escape(self.verdict)}</p></div>"


def summarize(result: Result) -> ResultSummary:
    """Return the summary of a result.

    The columns are the first outer step, in which λ has not moved; the last step of the run with λ at its start; the
    kept step. After `pt.tune` the run with λ at its start is not the plain training of the table, and it has a column
    only beside a tuned run.
    """
    rows, fixed, kept = result.rows, result.plain_rows, result.kept
    columns = {"before tuning (step 1)": rows[0]} if rows else {}
    if fixed and (rows or not result.comparison):
        words = "λ fixed" if result.comparison else "plain training"
        columns[f"{words} (step {fixed[-1]['outer_step']})"] = fixed[-1]
    columns[f"kept (step {result.kept_step})"] = kept
    names = [name for name in kept if name.startswith(PREFIXES)]
    return ResultSummary(
        run=_run(result),
        kept=_kept(result),
        titles=list(columns),
        numbers=[(column_title(name), [_number(row, name) for row in columns.values()]) for name in names],
        verdict=result.verdict,
    )


def _run(result: Result) -> str:
    """Return how the run ended, after how many steps, in what time; after `pt.tune` the run of the kept procedure."""
    rows = result.rows or (result.plain_rows if result.comparison else [])
    seconds = f" in {rows[-1]['seconds']:.1f} s" if rows and "seconds" in rows[-1] else ""
    return f"{ENDINGS[result.status]} after {len(rows)} outer step{'' if len(rows) == 1 else 's'}{seconds}"


def _kept(result: Result) -> str:
    if not result.kept:
        return "no outer step is kept: the model and λ are where they started"
    if result.comparison:
        name = next((str(row["model"]) for row in result.comparison if row["kept"]), "")
        return f"kept: step {result.kept_step} of {name}"
    if result.kept_run == "plain":
        return f"kept: step {result.kept_step} of plain training, with λ where it started"
    return f"kept: step {result.kept_step} of the tuned run, ζ = {result.zeta:.4g}"


def _number(row: Row, name: str) -> str:
    return f"{row[name]:.4g}" if name in row else "–"
