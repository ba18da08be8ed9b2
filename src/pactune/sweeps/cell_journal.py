"""Reading the journal of a cell, while a worker writes it and after the cell has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pactune.columns import Row
from pactune.errors import RunFolderError
from pactune.sweeps.cell_settings import CellFit
from pactune.sweeps.worker import CELL
from pactune.tracking.journal import JOURNAL, read_lines, starts_of
from pactune.tracking.status import count_outer_steps, is_finished, succeeded

__all__ = ["CellProgress", "find_ending"]


def find_ending(folder: Path, fit: CellFit) -> Row | None:
    """Return the journal line that the worker wrote at the end of a cell; None if the cell has to be run.

    A cell that was fitted with other settings has to be run too. `Tuner.fit` then resumes it or raises.

    Raises:
        RunFolderError: another `build` function made the cell.
    """
    lines = read_lines(folder)
    ending = next((line for line in reversed(lines) if line["kind"] == CELL and "build" in line), None)
    if ending is None:
        return None
    if ending["build"] != fit.build:
        raise RunFolderError(
            f"{folder} was made by `{ending['build']}` and `build` is `{fit.build}`; choose another `run_dir`"
        )
    start = next((line["settings"] for line in reversed(starts_of(lines))), None)
    same_settings = start is not None and _started_with(start, fit)
    return ending if same_settings and _has_all_steps(lines, ending["status"], fit.outer_steps) else None


def _started_with(start: dict[str, Any], fit: CellFit) -> bool:
    """Return True if a run started with the settings in `fit`; `Tuner.fit` names those that differ."""
    return all(start.get(name) == getattr(fit, name) for name in ("keep", "tolerance", "plain_steps", "test"))


def _has_all_steps(lines: list[Row], status: str, outer_steps: int) -> bool:
    """Return True if the cell succeeded and has made all its outer steps."""
    done = count_outer_steps(lines)
    return succeeded(status) and 0 < done <= outer_steps and is_finished(status, done, outer_steps)


class CellProgress:
    """The progress of a cell, read from the journal that a worker writes.

    Args:
        folder: the run folder of the cell; it need not exist yet.

    Attributes:
        steps: how many outer steps the journal holds.
        objective: the objective after the last of them; None before the first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._size = folder, -1
        self.steps = 0
        self.objective: float | None = None
        self._starts_before = self._starts = 0
        self.refresh()
        self._starts_before = self._starts

    @property
    def attempts(self) -> int:
        """How often the run was started or resumed since this object was made."""
        return self._starts - self._starts_before

    def refresh(self) -> None:
        """Read the journal again if its size has changed."""
        path = self._folder / JOURNAL
        size = path.stat().st_size if path.exists() else 0
        if size == self._size:
            return
        self._size = size
        lines = read_lines(self._folder)
        rows = [line for line in lines if line["kind"] == "row"]
        self.steps = count_outer_steps(rows)
        self.objective = rows[-1].get("objective") if rows else None
        self._starts = sum(line["kind"] in ("start", "resume") for line in lines)
