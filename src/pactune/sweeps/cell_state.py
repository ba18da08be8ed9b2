"""The state of every cell of a sweep."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from pactune.columns import Row
from pactune.errors import RunFolderError
from pactune.sweeps.folder import Watch, find_ending
from pactune.sweeps.grid import Cell
from pactune.sweeps.plan import CellFit
from pactune.sweeps.worker import Failure
from pactune.tracking.files import folder_inside, make_folder, write_atomically

__all__ = ["CELLS", "CellState", "CellStatus"]

CELLS = "cells"  # folder of the cells' folders
TRACE = "error.txt"
logger = logging.getLogger(__name__)
CellStatus = Literal["waiting", "running", "completed", "converged", "failed", "interrupted"]


class CellState:
    """One cell: its folder, and how it stands.

    Args:
        cell: which.
        root: the folder of the sweep.
        fit: what the cell is to do.

    Raises:
        RunFolderError: the cell's folder was made by another function, or is a link.
    """

    def __init__(self, cell: Cell, root: Path, fit: CellFit) -> None:
        self.cell, self._fit = cell, fit
        self.folder = folder_inside(root, CELLS, cell.name)
        self.watch = Watch(self.folder)
        self.ending: Row | None = find_ending(self.folder, fit)
        self.found_done = self.ending is not None
        self.failure: Failure | None = None
        self._given_up = False

    @property
    def status(self) -> CellStatus:
        """How the cell stands."""
        if self.ending is not None:
            return "converged" if self.ending["status"] == "converged" else "completed"
        if self.failure is not None:
            return "failed"
        if self._given_up:
            return "interrupted"
        return "running" if self.watch.attempts else "waiting"

    @property
    def pending(self) -> bool:
        """Whether the cell has yet to end."""
        return self.status in ("waiting", "running")

    def close(self, failure: Failure | None) -> None:
        """Take in how the cell ended, and keep the traceback of a failure in its folder."""
        self.watch.look()
        self.ending = None if failure else find_ending(self.folder, self._fit)
        if self.ending is None:
            self.failure = failure or Failure("its journal is damaged; start the sweep again to heal it", "")
        try:
            self._keep_trace()
        except (RunFolderError, OSError) as error:  # the other cells go on
            logger.warning("%s", error)

    def _keep_trace(self) -> None:
        trace = self.folder / TRACE
        if self.failure is not None and self.failure.trace:
            make_folder(self.folder)
            write_atomically(trace, self.failure.trace.encode(errors="replace"))
        elif self.ending is not None:
            trace.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Say that nobody works on the cell any more, unless it has ended."""
        self.watch.look()
        self._given_up = True
