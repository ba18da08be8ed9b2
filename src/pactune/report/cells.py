"""The cells of a grid or a sweep as tables, read from their run folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pactune.columns import JOURNAL_COLUMNS, Row
from pactune.tracking.journal import read_lines
from pactune.tuning.cells import Cell, parse_cell_name

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CellResult", "SweepTables", "cell_frame", "cell_table", "history_of", "read_cell", "tables_of"]

CELL = "cell"  # the kind of the line that ends a cell of a sweep


class CellResult(NamedTuple):
    """One cell of a grid or a sweep.

    Attributes:
        values: of the cell, by the keys of the grid.
        status: "completed", "converged", "failed", "interrupted", or "waiting" if the cell never began.
        folder: the run folder of the cell.
        rows: the history up to the last outer step.
        plain_rows: the history of plain training.
        ending: the kept step, ζ and the verdict; empty unless the cell is done.
        error: why the cell failed; empty otherwise. The traceback is in `error.txt` in the folder.
    """

    values: Cell
    status: str
    folder: Path
    rows: list[Row]
    plain_rows: list[Row]
    ending: Row
    error: str

    @property
    def name(self) -> str:
        """The name of the cell and of its run folder."""
        return self.folder.name

    @property
    def kept(self) -> Row:
        """The row of the kept outer step; empty unless the cell is done."""
        rows = self.plain_rows if self.ending.get("kept_run") == "plain" else self.rows
        return next((row for row in rows if row["outer_step"] == self.ending.get("kept_step")), {})


class SweepTables(NamedTuple):
    """A grid or a sweep as tables.

    Attributes:
        keys: the keys of the grid.
        cells: a row per cell.
        history: a row per cell and outer step.
        plain: a row per cell and outer step of plain training.
        notes: warnings by the name of their cell.
    """

    keys: list[str]
    cells: pd.DataFrame
    history: pd.DataFrame
    plain: pd.DataFrame
    notes: dict[str, list[str]]


def read_cell(folder: Path) -> CellResult:
    """Return the cell of a run folder. A cell of `fit_grid` has its values in the name of the folder only."""
    lines = read_lines(folder)
    ending = next((line for line in reversed(lines) if line["kind"] in (CELL, "end")), {})
    known = next((line["values"] for line in reversed(lines) if line["kind"] == CELL and "values" in line), None)
    values = known or parse_cell_name(folder.name)
    status = str(ending.get("status", "not finished"))
    rows, plain = history_of(lines, "row"), history_of(lines, "plain row")
    return CellResult(values, status, folder, rows, plain, ending, str(ending.get("error", "")))


def tables_of(cells: Sequence[CellResult]) -> SweepTables:
    """Return the tables of cells that have the same keys."""
    keys = list(cells[0].values)
    rows = [{**cell.values, **row} for cell in cells for row in cell.rows]
    plain = [{**cell.values, **row} for cell in cells for row in cell.plain_rows]
    notes = {cell.name: found for cell in cells if (found := cell.ending.get("warnings"))}
    return SweepTables(keys, cell_table(cells, keys), cell_frame(rows, keys), cell_frame(plain, keys), notes)


def history_of(lines: Iterable[Row], kind: str) -> list[Row]:
    """Return the rows of a kind, sorted by outer step; a resumed run may have written the same step twice."""
    found = {line["outer_step"]: line for line in lines if line["kind"] == kind}
    return [{k: v for k, v in found[step].items() if k not in JOURNAL_COLUMNS} for step in sorted(found)]


def cell_table(cells: Sequence[CellResult], keys: list[str]) -> pd.DataFrame:
    """Return a row per cell: its values, its status, and the numbers of its kept outer step."""
    return cell_frame([_table_row(cell) for cell in cells], keys)


def cell_frame(rows: list[Row], keys: list[str]) -> pd.DataFrame:
    """Return a table. pandas would turn a None of the grid into NaN; here it stays None."""
    import pandas as pd

    if not rows:
        return pd.DataFrame(columns=keys)
    frame = pd.DataFrame(rows)
    for key in keys:
        if any(row[key] is None for row in rows):
            frame[key] = pd.Series([row[key] for row in rows], dtype=object)
    return frame


def _table_row(cell: CellResult) -> Row:
    kept: dict[str, Any] = {name: cell.ending.get(name) for name in ("kept_run", "kept_step", "kept_zeta")}
    numbers = {name: value for name, value in cell.kept.items() if name not in ("outer_step", "seconds")}
    seconds = {"seconds": cell.rows[-1].get("seconds")} if cell.rows else {}
    texts = {"verdict": cell.ending.get("verdict", ""), "error": cell.error, "folder": str(cell.folder)}
    return {**cell.values, "status": cell.status, "outer_steps": len(cell.rows), **kept, **numbers, **seconds, **texts}
