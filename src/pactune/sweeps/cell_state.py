"""The state of one cell, as the process that runs the sweep sees it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from pactune.columns import Row
from pactune.errors import RunFolderError
from pactune.storage.files import folder_inside, make_folder, write_atomically
from pactune.sweeps.cell_journal import CellProgress, find_ending
from pactune.sweeps.cell_settings import CellFit
from pactune.sweeps.worker import Failure
from pactune.tuning.cells import Cell, unique_cell_name

__all__ = ["CELLS", "CellState", "CellStatus"]

CELLS = "cells"  # the sub-folder of the sweep that holds the run folders
TRACEBACK = "error.txt"  # in the run folder of a cell that failed
logger = logging.getLogger(__name__)
CellStatus = Literal["waiting", "running", "completed", "converged", "failed", "interrupted"]


class CellState:
    """A cell, its run folder and its status.

    Args:
        cell: the values of the cell.
        root: the folder of the sweep.
        fit: how the cell is fitted.

    Attributes:
        name: of the cell and of its run folder.
        folder: the run folder.
        progress: read from the journal.
        ending: the line that the worker wrote at the end; None until the cell is done.
        failure: why the cell failed; None if it did not.

    Raises:
        RunFolderError: another function made the run folder, or the folder is a link.
    """

    def __init__(self, cell: Cell, root: Path, fit: CellFit) -> None:
        self.cell, self._fit = cell, fit
        self.name = unique_cell_name(cell)
        self.folder = folder_inside(root, CELLS, self.name)
        self.progress = CellProgress(self.folder)
        self.ending: Row | None = find_ending(self.folder, fit)
        self.failure: Failure | None = None
        self._interrupted = False

    @property
    def status(self) -> CellStatus:
        """The status, derived from the journal, the failure and the interrupt."""
        if self.ending is not None:
            return "converged" if self.ending["status"] == "converged" else "completed"
        if self.failure is not None:
            return "failed"
        if self._interrupted:
            return "interrupted"
        return "running" if self.progress.attempts else "waiting"

    @property
    def pending(self) -> bool:
        """True if the cell has neither ended nor been interrupted."""
        return self.status in ("waiting", "running")

    def end(self, failure: Failure | None) -> None:
        """Record that the worker has returned, and write the traceback of a failure into the run folder.

        Args:
            failure: why the worker failed; None if it did not.
        """
        self.progress.refresh()
        self.ending = None if failure else find_ending(self.folder, self._fit)
        if self.ending is None:
            self.failure = failure or Failure("its journal is damaged; start the sweep again to heal it", "")
        try:
            self._update_traceback()
        except (RunFolderError, OSError) as error:  # the other cells go on
            logger.warning("%s", error)

    def _update_traceback(self) -> None:
        """Write the traceback of a failure, or remove that of an earlier attempt."""
        path = self.folder / TRACEBACK
        if self.failure is not None and self.failure.trace:
            make_folder(self.folder)
            write_atomically(path, self.failure.trace.encode(errors="replace"))
        elif self.ending is not None:
            path.unlink(missing_ok=True)

    def interrupt(self) -> None:
        """Record that no worker runs the cell any more; the status of a cell that has ended stays."""
        self.progress.refresh()
        self._interrupted = True
