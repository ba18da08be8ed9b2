"""The result of a sweep: one history, one table, and a method that loads the model of a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pactune.errors import SettingError
from pactune.report.cells import CellResult, history_of, tables_of
from pactune.sweeps.cell_state import CellState
from pactune.tracking.journal import read_lines
from pactune.tracking.spreadsheets import write_csv
from pactune.tuning.cells import Scalar

if TYPE_CHECKING:
    import pandas as pd

    from pactune.results.result import Result
    from pactune.tuning.tuner import Tuner

__all__ = ["CellResult", "SweepResult", "cell_result"]


def cell_result(state: CellState) -> CellResult:
    """Return the result of a cell, read from its run folder."""
    lines = read_lines(state.folder)
    error = "" if state.failure is None else state.failure.error
    rows, plain = history_of(lines, "row"), history_of(lines, "plain row")
    return CellResult(state.cell, state.status, state.folder, rows, plain, state.ending or {}, error)


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
        return tables_of(self.cells).history

    @property
    def plain(self) -> pd.DataFrame:
        """The same for plain training, in which λ stays at its initial value."""
        return tables_of(self.cells).plain

    @property
    def table(self) -> pd.DataFrame:
        """A row per cell: its values, its status, and the numbers of its kept outer step."""
        return tables_of(self.cells).cells

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
        from pactune.report.sweep import write_sweep_page

        tables = tables_of(self.cells)
        write_csv(tables.cells, self.folder / "cells.csv")
        write_csv(tables.history, self.folder / "history.csv")
        return write_sweep_page(tables, self.folder / "report.html")
