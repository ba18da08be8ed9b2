"""What remembers a run while it goes on: nothing by default, a run folder when `run_dir` is given."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from pactune.columns import CLOCK_COLUMNS, JOURNAL_COLUMNS, Row
from pactune.errors import RunFolderError, warn_user
from pactune.tracking.checkpoint import (
    DamagedError,
    checkpoint_path,
    clear_partial,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    step_of,
)
from pactune.tracking.files import folder_inside, has_content, make_folder
from pactune.tracking.fingerprint import PARTS, differences, moved_parts
from pactune.tracking.journal import JOURNAL, Journal, read_lines, starts_of
from pactune.tracking.parts import Parts
from pactune.tracking.run_folder import versions_of
from pactune.tracking.schema import UnfitError
from pactune.tracking.state_schema import check_document, check_state

__all__ = ["FolderRecorder", "Pace", "Recorder", "start_together"]

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


class Pace:
    """Decides after which outer steps checkpoints are written.

    Writing may take a small part of the time only. The runs of a grid share a pace and ask it after the same outer
    step, so that all of them have checkpoints of the same steps and can be resumed together.
    """

    def __init__(self) -> None:
        self._step, self._due, self._spent, self._wanted = -1, 0.0, 0.0, True

    def is_due(self, step: int) -> bool:
        """Whether checkpoints of this outer step are written: one answer for all runs."""
        if step != self._step:
            self._step, self._spent = step, 0.0
            self._wanted = time.monotonic() >= self._due
        return self._wanted

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure how long it takes to write one; the next pause depends on the sum over all runs."""
        begun = time.monotonic()
        yield
        self._spent += time.monotonic() - begun
        self._due = time.monotonic() + _pause(self._spent)


def _pause(seconds: float) -> float:
    """Return how long to do without checkpoints after some that took so long.

    >>> _pause(0.02), _pause(2.0), _pause(30.0)
    (0.0, 120.0, 600.0)
    """
    return 0.0 if seconds < SLOW else min(PAUSE * seconds, MOST_PAUSE)


def start_together(recorders: Sequence[FolderRecorder]) -> None:
    """Let runs resume from one outer step, the last of which all have a checkpoint.

    Runs that are stacked round differently from runs that are alone. Where all go on from the same step, as they would
    have without the interruption, their numbers are the same bit for bit.
    """
    steps = [step for recorder in recorders if (step := recorder.newest_step()) is not None]
    for recorder in recorders if steps else ():
        recorder.start_by(min(steps))


class FolderRecorder(Recorder):
    """Keeps a journal and the last two checkpoints in a folder.

    Args:
        folder: where; made if it does not exist.
        resume: go on from the last checkpoint, where there is one.
        settings: what makes the run this run. A folder whose settings differ is refused.
        parts: `parts(checksums=…)` returns what the run's modules and losses are made of just now; it is compared too,
            except for what changes in training.
        pace: decides after which outer steps checkpoints are written; the runs of a grid share one.

    Raises:
        RunFolderError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resume: bool,
        settings: dict[str, Any],
        parts: Callable[..., Parts] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.folder, self._resume, self._pace, self._parts = folder, resume, pace or Pace(), parts
        self._latest: int | None = None
        self._settings = settings if parts is None or PARTS in settings else {**settings, PARTS: parts(checksums=True)}
        self._versions = versions_of("torch", "numpy")
        self._journal: Journal | None = None
        self._moved: set[str] = set()
        self._written: dict[str, set[int]] = {}
        self._ahead: dict[str, dict[int, Row]] = {}
        if has_content(folder / JOURNAL) or list_checkpoints(folder):
            self._check_early()

    def part(self, name: str) -> Recorder:
        """Return the recorder of a sub-folder."""
        folder, settings = folder_inside(self.folder, name), {**self._settings, "part": name}
        return FolderRecorder(folder, resume=self._resume, settings=settings, parts=self._parts)

    def __enter__(self) -> Recorder:
        make_folder(self.folder)
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

        The checkpoint decides: what the journal lacks or says otherwise is written to it again.

        Raises:
            RunFolderError: the folder is of another run or version, or no checkpoint is whole.
        """
        clear_partial(self.folder)
        lines = read_lines(self.folder)
        saved = self._newest(device)
        self._ahead = {field: _history(lines, kind) for field, kind in KINDS.items()}
        starts = starts_of(lines)
        if saved is None:
            self._begin(starts)
            return None
        self._moved = set(saved.get("moved", []))
        state: State = saved["state"]
        self._repair(state, starts, saved)
        if saved["versions"] == self._versions:
            self._settings = saved["settings"]  # as the run began; ours may have moved since
        else:
            self._write_start(self._settings, self._versions)
        self._write("resume", outer_steps_done=len(state["rows"]), versions=self._versions)
        self._write_rows(state)
        return state

    def save(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Write a checkpoint, then the new rows.

        A checkpoint that takes long is not written after every outer step. The journal may then be ahead of it: a
        resumed run makes those steps again, and finds their rows written.
        """
        present = state()
        step = len(present["rows"])
        if last or self._pace.is_due(step):
            with self._pace.timed():
                save_checkpoint(self.folder, step, self._document(present))
        self._write_rows(present)

    def end(self, **fields: Any) -> None:
        """Write how the run ended."""
        self._write("end", **fields)

    def _document(self, present: State) -> State:
        """Return what a checkpoint holds: the settings at the start, the parts that have moved since, and the state."""
        if self._parts is not None:
            self._moved |= set(moved_parts(self._settings[PARTS], self._parts(checksums=False)))
        document = {"settings": self._settings, "versions": self._versions, "state": present}
        return {**document, "moved": sorted(self._moved)} if self._moved else document

    def _begin(self, starts: list[Row]) -> None:
        """Begin a new run in a folder without a checkpoint."""
        if starts:
            self._check(starts[-1])
        if any(self._ahead.values()):
            raise RunFolderError(f"{self.folder} has a journal of a run but no checkpoint; choose another `run_dir`")
        self._written = {field: set() for field in KINDS}
        self._write_start(self._settings, self._versions)

    def _check_early(self) -> None:
        """Refuse a folder before hours of work."""
        if not self._resume:
            raise RunFolderError(
                f"{self.folder} holds a run already; pass resume=True to go on with it, or another `run_dir`"
            )
        if self._newest(torch.device("cpu")) is None:
            for start in starts_of(read_lines(self.folder))[-1:]:
                self._check(start)

    def newest_step(self) -> int | None:
        """Return the outer step of the newest checkpoint; None without one, or where the run ended by itself."""
        ends = [line.get("status") for line in read_lines(self.folder) if line["kind"] in ("end", "resume")]
        paths = list_checkpoints(self.folder)
        return step_of(paths[0]) if paths and ends[-1:] not in (["converged"], ["diverged"]) else None

    def start_by(self, step: int) -> None:
        """Resume from the newest checkpoint that is not after this outer step, where there is one."""
        self._latest = step

    def _candidates(self) -> list[Path]:
        """Return the checkpoints to resume from, the best first."""
        paths = list_checkpoints(self.folder)
        early = [path for path in paths if self._latest is None or step_of(path) <= self._latest]
        if paths and not early:
            logger.warning(
                "%s lacks a checkpoint of step %s: its numbers may differ by rounding", self.folder, self._latest
            )
        return early or paths

    def _newest(self, device: torch.device) -> State | None:
        """Return the newest checkpoint that is whole and as pactune writes it."""
        damaged = []
        for path in self._candidates():
            try:
                found: State = load_checkpoint(path, device)
                check_document(found, path.name)
                self._check(found)
                check_state(found["state"], self._settings)
                if path != checkpoint_path(self.folder, len(found["state"]["rows"])):
                    raise DamagedError(f"it holds {len(found['state']['rows'])} rows, which is not its number")
            except (DamagedError, UnfitError) as error:
                logger.warning("%s: %s; trying the one before", path.name, error)
                damaged.append(f"{path.name}: {error}")
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
        if versions.get("pactune") != self._versions["pactune"]:
            raise RunFolderError(
                f"{self.folder} was written by pactune {versions.get('pactune')} and this is "
                f"{self._versions['pactune']}; resume with that version, or start anew in another `run_dir`"
            )
        if versions != self._versions:
            logger.warning("%s: resuming with other versions than %s; numbers may differ", self.folder, versions)
        moved = frozenset(found.get("moved", ()))
        words = differences(found["settings"], self._settings, moved=moved, versions_differ=versions != self._versions)
        if words:
            raise RunFolderError(f"{self.folder} holds another run: {words}. Choose another `run_dir`")

    def _repair(self, state: State, starts: list[Row], saved: State) -> None:
        """Write to the journal what the checkpoint says and it does not."""
        self._written = {field: set() for field in KINDS}
        rows = {field: [row for row in state[field] if self._is_new(field, row)] for field in KINDS}
        if starts and starts[-1]["settings"] == saved["settings"]:
            start = ""
        else:
            start = "its first line"
            self._write_start(saved["settings"], saved["versions"])
        wrong = sum(row["outer_step"] in self._ahead[field] for field in KINDS for row in rows[field])
        words = [start, f"{wrong} rows that differ" if wrong else ""]
        if any(words):
            warn_user(
                f"{self.folder / JOURNAL} was damaged and is repaired from the checkpoint: "
                f"{' and '.join(filter(None, words))} written again"
            )

    def _is_new(self, field: str, row: Row) -> bool:
        """Tell whether a row has yet to be written: the journal lacks it or has other numbers, time apart."""
        if row["outer_step"] in self._written[field]:
            return False
        found = self._ahead[field].get(row["outer_step"])
        return found is None or _timeless(found) != _timeless(row)

    def _write_start(self, settings: dict[str, Any], versions: dict[str, str]) -> None:
        self._write("start", settings=settings, seed=settings.get("seed"), versions=versions)

    def _write_rows(self, state: State) -> None:
        """Write the rows that the journal lacks."""
        assert self._journal is not None
        fresh = [(field, row) for field in KINDS for row in state[field] if self._is_new(field, row)]
        self._journal.extend({"kind": KINDS[field], **row} for field, row in fresh)
        for field in KINDS:
            self._written[field] |= {row["outer_step"] for row in state[field]}

    def _write(self, kind: str, **fields: Any) -> None:
        assert self._journal is not None
        self._journal.append(kind, **fields)


def _history(lines: list[Row], kind: str) -> dict[int, Row]:
    """Return the rows of a journal by outer step; where a step was written twice, the later one."""
    return {line["outer_step"]: line for line in lines if line["kind"] == kind}


def _timeless(row: Row) -> dict[str, str]:
    """Return the numbers of a row as text, in which NaN equals itself."""
    return {name: repr(value) for name, value in row.items() if name not in (*JOURNAL_COLUMNS, *CLOCK_COLUMNS)}
