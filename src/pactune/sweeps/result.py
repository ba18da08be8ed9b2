"""The result of a sweep: one history, one table, and a method that loads the model of a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pactune.columns import JOURNAL_COLUMNS, Row
from pactune.errors import SettingError
from pactune.sweeps.cell_state import CellState, CellStatus
from pactune.tracking.journal import read_lines
from pactune.tracking.spreadsheets import write_csv
from pactune.tuning.cells import Cell, Scalar

if TYPE_CHECKING:
    import pandas as pd

    from pactune.results.result import Result
    from pactune.tuning.tuner import Tuner

__all__ = ["CellResult", "SweepResult"]


class CellResult(NamedTuple):
    """One cell of a finished sweep.

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
    status: CellStatus
    folder: Path
    rows: list[Row]
    plain_rows: list[Row]
    ending: Row
    error: str

    @classmethod
    def of(cls, state: CellState) -> CellResult:
        """Return the result of a cell, read from its run folder."""
        lines = read_lines(state.folder)
        rows, plain = _rows(lines, "row"), _rows(lines, "plain row")
        error = "" if state.failure is None else state.failure.error
        return cls(state.cell, state.status, state.folder, rows, plain, state.ending or {}, error)

    @property
    def name(self) -> str:
        """The name of the cell and of its run folder."""
        return self.folder.name

    @property
    def kept(self) -> Row:
        """The row of the kept outer step; empty unless the cell is done."""
        rows = self.plain_rows if self.ending.get("kept_run") == "plain" else self.rows
        return next((row for row in rows if row["outer_step"] == self.ending.get("kept_step")), {})


@dataclass(frozen=True)
class SweepResult:
    """The outcome of `pt.sweep`.

    Attributes:
        folder: the folder of the sweep.
        cells: one `CellResult` per cell, in the order of the grid.
        build: the function that made the tuners.
        arguments: the arguments of `Tuner.fit`.
    """

    folder: Path
    cells: list[CellResult]
    build: Callable[..., Tuner] = field(repr=False)
    arguments: dict[str, Any] = field(repr=False)

    @property
    def status(self) -> Literal["completed", "failed", "interrupted"]:
        """The status: "interrupted" after Ctrl-C, "failed" if a cell failed, "completed" otherwise."""
        statuses = {cell.status for cell in self.cells}
        if statuses & {"interrupted", "waiting", "running"}:
            return "interrupted"
        return "failed" if "failed" in statuses else "completed"

    @property
    def failed(self) -> list[CellResult]:
        """The cells that failed."""
        return [cell for cell in self.cells if cell.status == "failed"]

    @property
    def history(self) -> pd.DataFrame:
        """A row per cell and outer step: the keys of the grid, then the columns of `Result.history`."""
        return _frame([{**cell.values, **row} for cell in self.cells for row in cell.rows], self._keys)

    @property
    def plain(self) -> pd.DataFrame:
        """The same for plain training, in which λ stays at its initial value."""
        return _frame([{**cell.values, **row} for cell in self.cells for row in cell.plain_rows], self._keys)

    @property
    def table(self) -> pd.DataFrame:
        """A row per cell: its values, its status, and the numbers of its kept outer step."""
        return _frame([_table_row(cell) for cell in self.cells], self._keys)

    def load(self, **values: Scalar) -> Result:
        """Return the `Result` of a finished cell with its model and hyperparameters. No outer step is made.

        Args:
            values: the value of the cell for every key of the grid.

        Raises:
            SettingError: no cell has these values, or the cell is not done.
        """
        cell = next((cell for cell in self.cells if cell.values == values), None)
        if cell is None:
            raise SettingError(f"no cell has {values!r}; the first one has {self.cells[0].values!r}")
        if not cell.ending:
            raise SettingError(f"{cell.name} is {cell.status}: only the model of a finished cell can be loaded")
        from pactune.problem.data import move

        tuner = self.build(**values)
        arguments = self.arguments | {"test": move(self.arguments["test"], tuner.problem.device)}
        return tuner.fit(**arguments, progress=False, run_dir=cell.folder, resume=True)

    def write_report(self) -> Path:
        """Write `report.html`, `cells.csv` and `history.csv` into the folder, and return the path of the page."""
        from pactune.report.sweep import SweepTables, write_sweep_page

        table, history = self.table, self.history
        write_csv(table, self.folder / "cells.csv")
        write_csv(history, self.folder / "history.csv")
        warnings = {cell.name: found for cell in self.cells if (found := cell.ending.get("warnings"))}
        tables = SweepTables(self._keys, table, history, self.plain, warnings)
        return write_sweep_page(tables, self.folder / "report.html")

    @property
    def _keys(self) -> list[str]:
        return list(self.cells[0].values)


def _rows(lines: Sequence[Row], kind: str) -> list[Row]:
    """Return the rows of a kind, sorted by outer step; a resumed run may have written the same step twice."""
    found = {line["outer_step"]: line for line in lines if line["kind"] == kind}
    return [{k: v for k, v in found[step].items() if k not in JOURNAL_COLUMNS} for step in sorted(found)]


def _table_row(cell: CellResult) -> Row:
    kept = {name: cell.ending.get(name) for name in ("kept_run", "kept_step", "kept_zeta")}
    numbers = {name: value for name, value in cell.kept.items() if name not in ("outer_step", "seconds")}
    seconds = {"seconds": cell.rows[-1].get("seconds")} if cell.rows else {}
    texts = {"verdict": cell.ending.get("verdict", ""), "error": cell.error, "folder": str(cell.folder)}
    return {**cell.values, "status": cell.status, "outer_steps": len(cell.rows), **kept, **numbers, **seconds, **texts}


def _frame(rows: list[Row], keys: list[str]) -> pd.DataFrame:
    """Return a table. pandas would turn a None of the grid into NaN; here it stays None."""
    import pandas as pd

    if not rows:
        return pd.DataFrame(columns=keys)
    frame = pd.DataFrame(rows)
    for key in keys:
        if any(row[key] is None for row in rows):
            frame[key] = pd.Series([row[key] for row in rows], dtype=object)
    return frame
