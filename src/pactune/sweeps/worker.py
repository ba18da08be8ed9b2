"""The function that runs on a Ray worker: fitting one cell, from its last checkpoint."""

from __future__ import annotations

import pickle
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pactune.errors import RunFolderError, SettingError
from pactune.sweeps.cell_settings import CellFit
from pactune.tracking.journal import JOURNAL, BusyError, Journal
from pactune.tuning.cells import Cell

if TYPE_CHECKING:
    from collections.abc import Callable

    from pactune.results.result import Result

__all__ = ["CELL", "CellTask", "Failure", "run_cell"]

CELL = "cell"  # the kind of the journal line that says that the cell is done
# Ray may declare a node dead and run its cell elsewhere, while a process on that node still has the journal open.
BUSY_SECONDS = 60.0


class CellTask(NamedTuple):
    """One cell to run.

    Attributes:
        cell: its values, which are the arguments of `build`.
        folder: its run folder.
        fit: how it is fitted.
        threads: how many threads torch uses.
    """

    cell: Cell
    folder: Path
    fit: CellFit
    threads: int


class Failure(NamedTuple):
    """The reason why a cell failed.

    Attributes:
        error: in one line.
        trace: the traceback; may be empty.
    """

    error: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return an exception as a failure."""
        line = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(line, "".join(traceback.format_exception(error)))


def run_cell(task: CellTask, payload: bytes) -> Failure | None:
    """Fit a cell or resume it.

    Args:
        task: the cell.
        payload: (build, test), pickled. They are unpickled here, so that an error in that is a failure like any other.

    Returns:
        The failure; None if the cell is done.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            ending = _fit(task, payload)
        messages = sorted({str(one.message) for one in caught if one.category is UserWarning})
        with Journal(task.folder) as journal:
            journal.append(CELL, values=task.cell, warnings=messages, **ending)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a SystemExit in the user's code fails this cell only
        return Failure.of(error)
    return None


def _fit(task: CellTask, payload: bytes) -> dict[str, Any]:
    """Fit the cell and return the fields of its last journal line."""
    import torch

    _check_shared_folder(task.folder)
    torch.set_num_threads(task.threads)
    build, test = pickle.loads(payload)
    result = _fit_when_free(task, build, test)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    kept = {"kept_run": result.kept_run, "kept_step": result.kept_step, "kept_zeta": result.zeta}
    return {"status": result.status, "build": task.fit.build, **kept, "verdict": result.verdict, "pays": result.pays}


def _fit_when_free(task: CellTask, build: Callable[..., Any], test: Any) -> Result:
    """Return the result of the cell; wait up to `BUSY_SECONDS` while another process has the journal open."""
    from pactune.problem.data import move
    from pactune.tuning.tuner import Tuner

    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        tuner = build(**task.cell)
        if not isinstance(tuner, Tuner):
            raise SettingError(f"`build` must return a Tuner, got {type(tuner).__name__}")
        moved = move(test, tuner.problem.device)
        try:
            return tuner.fit(**task.fit.arguments(), test=moved, progress=False, run_dir=task.folder, resume=True)
        except BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _check_shared_folder(folder: Path) -> None:
    """Raise if this node does not see the folder of the sweep."""
    root = folder.parents[1]
    if not (root / JOURNAL).exists():
        import platform

        raise RunFolderError(
            f"`run_dir` {root} is not there on {platform.node()}; it must be on a file system that all nodes share"
        )
