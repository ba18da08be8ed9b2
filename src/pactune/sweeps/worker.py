"""What runs on a Ray worker: one cell, from its last checkpoint."""

from __future__ import annotations

import pickle
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from pactune.errors import RunFolderError, SettingError
from pactune.sweeps.grid import Value
from pactune.sweeps.plan import CellFit
from pactune.tracking.journal import JOURNAL, BusyError, Journal

__all__ = ["CELL", "CellTask", "Failure", "run_cell"]

CELL = "cell"  # kind of the journal's line by which a cell says that it is done
# A node may be declared dead, and its cell given to another one, before its last process has let go of the folder.
PATIENCE_SECONDS = 60.0


class CellTask(NamedTuple):
    """One cell to run."""

    values: dict[str, Value]
    folder: Path
    fit: CellFit
    threads: int


class Failure(NamedTuple):
    """Why a cell did not finish."""

    error: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the words of an exception."""
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(words, "".join(traceback.format_exception(error)))


def run_cell(job: CellTask, payload: bytes) -> Failure | None:
    """Fit one cell, or go on with it; return why it failed, None when it is done.

    `payload` is (build, test), pickled, so that what cannot be loaded here is a failure like any other.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            ending = _fit(job, payload)
        said = sorted({str(one.message) for one in caught if one.category is UserWarning})
        with Journal(job.folder) as journal:
            journal.append(CELL, values=job.values, warnings=said, **ending)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a SystemExit of the user's code too is the failure of one cell
        return Failure.of(error)
    return None


def _fit(job: CellTask, payload: bytes) -> dict[str, Any]:
    import torch

    from pactune.problem.data.source import move
    from pactune.tuning.tuner import Tuner

    _check_shared(job.folder)
    torch.set_num_threads(job.threads)
    build, test = pickle.loads(payload)
    patient_until = time.monotonic() + PATIENCE_SECONDS
    while True:
        tuner = build(**job.values)
        if not isinstance(tuner, Tuner):
            raise SettingError(f"`build` must return a Tuner, got {type(tuner).__name__}")
        here = move(test, tuner.problem.device)
        try:
            result = tuner.fit(**job.fit.arguments(), test=here, progress=False, run_dir=job.folder, resume=True)
        except BusyError:
            if time.monotonic() > patient_until:
                raise
            time.sleep(1.0)
            continue
        if result.status == "interrupted":
            raise KeyboardInterrupt
        kept = {"kept_run": result.kept_run, "kept_step": result.kept_step, "kept_zeta": result.zeta}
        return {"status": result.status, "build": job.fit.build, **kept, "verdict": result.verdict, "pays": result.pays}


def _check_shared(folder: Path) -> None:
    """Raise where this node does not see the folder that the sweep was started in."""
    root = folder.parents[1]
    if not (root / JOURNAL).exists():
        import platform

        raise RunFolderError(
            f"`run_dir` {root} is not there on {platform.node()}; it must be on a file system that all nodes share"
        )
