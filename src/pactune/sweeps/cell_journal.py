"""What the folder of a cell says about it, while it runs and when it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pactune.columns import Row
from pactune.errors import RunFolderError
from pactune.sweeps.plan import CellFit
from pactune.sweeps.worker import CELL
from pactune.tracking.journal import JOURNAL, read_lines, starts_of

__all__ = ["Watch", "find_ending"]


def find_ending(folder: Path, fit: CellFit) -> Row | None:
    """Return the line that says that a cell is done as `fit` asks, None where it has yet to run.

    Raises:
        RunFolderError: the cell was made by another function.
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
    steps = {line["outer_step"] for line in lines if line["kind"] == "row"}
    enough = len(steps) == fit.outer_steps or (ending["status"] == "converged" and 0 < len(steps) < fit.outer_steps)
    return ending if start is not None and enough and _same(start, fit) else None


def _same(start: dict[str, Any], fit: CellFit) -> bool:
    """Tell whether a run began with the same settings; where not, `Tuner.fit` will say which differ."""
    return all(start.get(name) == getattr(fit, name) for name in ("keep", "tolerance", "plain_steps", "test"))


class Watch:
    """Follows the journal of a cell that another process writes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._size = folder, -1
        self.steps = 0
        self.objective: float | None = None
        self._begun_before = self._begun = 0
        self.look()
        self._begun_before = self._begun

    @property
    def attempts(self) -> int:
        """How often the run was started or resumed since this object was made."""
        return self._begun - self._begun_before

    def look(self) -> None:
        """Read the journal again if it has changed."""
        path = self._folder / JOURNAL
        size = path.stat().st_size if path.exists() else 0
        if size == self._size:
            return
        self._size = size
        lines = read_lines(self._folder)
        rows = [line for line in lines if line["kind"] == "row"]
        self.steps = len({row["outer_step"] for row in rows})
        self.objective = rows[-1].get("objective") if rows else None
        self._begun = sum(line["kind"] in ("start", "resume") for line in lines)
