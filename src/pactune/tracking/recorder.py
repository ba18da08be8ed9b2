"""What remembers a run while it goes on: nothing by default, a run folder when `run_dir` is given."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from pactune.errors import RunFolderError
from pactune.tracking.checkpoint import DamagedError, clear_partial, list_checkpoints, load_checkpoint, save_checkpoint
from pactune.tracking.journal import JOURNAL, Journal, Row, read_journal
from pactune.tracking.run_folder import versions_of

__all__ = ["FolderRecorder", "Recorder"]

State = dict[str, Any]
# Rows of the history as the journal calls them.
KINDS = {"rows": "row", "plain_rows": "plain row"}
SLOW = 1.0  # seconds from which a checkpoint is not written after every outer step
PAUSE = 60.0  # so many times its own duration passes before the next one: ten large runs side by side wait a sixth
MOST_PAUSE = 600.0  # seconds of work that may be lost

logger = logging.getLogger(__name__)


class Recorder:
    """Remembers nothing."""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""

    def load(self, device: torch.device) -> State | None:
        """Return the state to go on from, None for a new run."""
        return None

    def save(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Remember the state after an outer step with its history so far; `last` when the run is over."""

    def end(self, **fields: Any) -> None:
        """Remember how the run ended."""

    def part(self, name: str) -> Recorder:
        """Return a recorder for a run that is a part of this one."""
        return self


class FolderRecorder(Recorder):
    """Keeps a journal and the last two checkpoints in a folder.

    Args:
        folder: where; made if it does not exist.
        resume: go on from the last checkpoint, where there is one.
        settings: what makes the run this run. A folder whose settings differ is refused.
        together: how many runs take turns in writing checkpoints, as the cells of a grid do.

    Raises:
        RunFolderError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, resume: bool, settings: dict[str, Any], together: int = 1) -> None:
        self.folder, self._resume, self._settings, self._together = folder, resume, settings, together
        self._versions = versions_of("torch", "numpy")
        self._journal: Journal | None = None
        self._written: dict[str, set[int]] = {}
        self._due = 0.0
        if self._used():
            self._check_early()

    def part(self, name: str) -> Recorder:
        """Return the recorder of a sub-folder."""
        return FolderRecorder(self.folder / name, resume=self._resume, settings={**self._settings, "part": name})

    def __enter__(self) -> Recorder:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"`run_dir` {self.folder} cannot be made: {error.strerror or error}") from error
        self._journal = Journal(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._journal is None:
            return
        try:
            if error is not None and self._written:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                self._journal.append("end", status=status, error=f"{type(error).__name__}: {error}")
        except RunFolderError as second:
            logger.warning("the end of the run cannot be written: %s", second)
        finally:
            self._journal.close()
            self._journal = None

    def load(self, device: torch.device) -> State | None:
        """Return the state of the newest checkpoint that is whole, None for a new run.

        Raises:
            RunFolderError: the folder is of another run or version, or no checkpoint is whole.
        """
        clear_partial(self.folder)
        lines = read_journal(self.folder)
        saved = self._newest(device)
        starts = [line for line in lines if line["kind"] == "start"]
        if saved is not None or starts:
            self._check(saved if saved is not None else starts[-1])
        rows = {field: _numbers(lines, kind) for field, kind in KINDS.items()}
        if saved is None and any(rows.values()):
            raise RunFolderError(f"{self.folder} has a journal of a run but no checkpoint; choose another `run_dir`")
        self._written = rows
        if saved is None:
            self._write("start", settings=self._settings, seed=self._settings.get("seed"), versions=self._versions)
            return None
        state: State = saved["state"]
        self._write("resume", outer_steps_done=len(state["rows"]), versions=self._versions)
        self._write_rows(state)
        return state

    def save(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Write a checkpoint, then the new rows.

        A checkpoint that takes long is not written after every outer step. The journal may then be ahead of it: a
        resumed run makes those steps again, and finds their rows written.
        """
        present = state()
        if last or time.monotonic() >= self._due:
            begun = time.monotonic()
            document = {"settings": self._settings, "versions": self._versions, "state": present}
            save_checkpoint(self.folder, len(present["rows"]), document)
            self._due = time.monotonic() + _pause(self._together * (time.monotonic() - begun))
        self._write_rows(present)

    def end(self, **fields: Any) -> None:
        """Write how the run ended."""
        self._write("end", **fields)

    def _used(self) -> bool:
        journal = self.folder / JOURNAL
        return (journal.exists() and journal.stat().st_size > 0) or bool(list_checkpoints(self.folder))

    def _check_early(self) -> None:
        """Refuse a folder before hours of work, as far as its journal tells."""
        if not self._resume:
            raise RunFolderError(
                f"{self.folder} holds a run already; pass resume=True to go on with it, or another `run_dir`"
            )
        lines = read_journal(self.folder) if (self.folder / JOURNAL).exists() else []
        for start in [line for line in lines if line["kind"] == "start"][-1:]:
            self._check(start)

    def _newest(self, device: torch.device) -> State | None:
        damaged = []
        for path in list_checkpoints(self.folder):
            try:
                found: State = load_checkpoint(path, device)
            except DamagedError as error:
                logger.warning("%s; trying the one before", error)
                damaged.append(str(error))
            else:
                return found
        if damaged:
            raise RunFolderError(
                f"{self.folder}: no checkpoint is whole ({'; '.join(damaged)}); start anew in another `run_dir`"
            )
        return None

    def _check(self, found: State) -> None:
        """Raise where a checkpoint or the first line of a journal is of another run or version."""
        versions = found["versions"]
        if versions["pactune"] != self._versions["pactune"]:
            raise RunFolderError(
                f"{self.folder} was written by pactune {versions['pactune']} and this is "
                f"{self._versions['pactune']}; resume with that version, or start anew in another `run_dir`"
            )
        if versions != self._versions:
            logger.warning("%s: resuming with other versions than %s; numbers may differ", self.folder, versions)
        theirs, ours = found["settings"], self._settings
        differing = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        if differing:
            words = "; ".join(f"{name} was {theirs.get(name)!r}, is {ours.get(name)!r}" for name in differing)
            raise RunFolderError(f"{self.folder} holds another run: {words}. Choose another `run_dir`")

    def _write_rows(self, state: State) -> None:
        """Write the rows that the journal lacks."""
        assert self._journal is not None
        missing = [
            {"kind": kind, **row}
            for field, kind in KINDS.items()
            for row in state[field]
            if row["outer_step"] not in self._written[field]
        ]
        self._journal.extend(missing)
        for field in KINDS:
            self._written[field] |= {row["outer_step"] for row in state[field]}

    def _write(self, kind: str, **fields: Any) -> None:
        assert self._journal is not None
        self._journal.append(kind, **fields)


def _pause(seconds: float) -> float:
    """Return how long to do without a checkpoint after one that took so long.

    >>> _pause(0.02), _pause(2.0), _pause(30.0)
    (0.0, 120.0, 600.0)
    """
    return 0.0 if seconds < SLOW else min(PAUSE * seconds, MOST_PAUSE)


def _numbers(lines: list[Row], kind: str) -> set[int]:
    return {line["outer_step"] for line in lines if line["kind"] == kind and "outer_step" in line}
