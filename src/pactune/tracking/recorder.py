"""Recorders save the state of a run and load it to resume. The default saves nothing; `run_dir` asks for files."""

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
from pactune.storage.files import folder_inside, has_content, make_folder
from pactune.storage.schema import SchemaError
from pactune.tracking.checkpoint import (
    DamagedError,
    checkpoint_path,
    clear_partial,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    step_of,
)
from pactune.tracking.fingerprint import PARTS, changed_parts, differences
from pactune.tracking.journal import JOURNAL, Journal, read_lines, starts_of
from pactune.tracking.parts import Parts
from pactune.tracking.run_folder import versions_of
from pactune.tracking.state_schema import check_document, check_state
from pactune.tracking.status import ended_early

__all__ = ["CheckpointSchedule", "FolderRecorder", "Recorder", "resume_together"]

State = dict[str, Any]
KINDS = {"rows": "row", "plain_rows": "plain row"}  # fields of the state, and the journal's kinds of their lines
SLOW = 1.0  # seconds; a checkpoint that takes longer is not written after every outer step
PAUSE = 60.0  # pause after a slow checkpoint, as a multiple of its duration: ten large runs side by side wait a sixth
MOST_PAUSE = 600.0  # the longest pause in seconds, and so the most work that a kill loses

logger = logging.getLogger(__name__)


class Recorder:
    """The recorder of a run without a run folder. It saves nothing."""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""

    def load(self, device: torch.device) -> State | None:
        """Return the saved state to resume from; None for a new run."""
        return None

    def save(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Save the state after an outer step, history included; `last` is True when the run is over."""

    def end(self, **fields: Any) -> None:
        """Save how the run ended."""

    def part(self, name: str, schedule: CheckpointSchedule | None = None, **settings: Any) -> Recorder:
        """Return the recorder of a sub-run, such as one fold of the search for ζ.

        Args:
            name: the name of its folder.
            schedule: a schedule of checkpoints that sub-runs share.
            settings: the settings in which it differs from the run.
        """
        return self

    def newest_step(self) -> int | None:
        """Return the outer step from which the run would resume; None if it starts anew or has ended by itself."""
        return None

    def start_by(self, step: int) -> None:
        """Resume from the newest checkpoint that is not after this outer step, if there is one."""


class CheckpointSchedule:
    """Decides after which outer steps checkpoints are written, so that writing takes little of the time.

    The runs of a grid share a schedule. All of them get the same answer for an outer step, so they have checkpoints of
    the same steps and can be resumed together.
    """

    def __init__(self) -> None:
        self._step, self._due, self._spent, self._wanted = -1, 0.0, 0.0, True

    def is_due(self, step: int) -> bool:
        """Return True if checkpoints of this outer step are to be written; the same answer for all runs."""
        if step != self._step:
            self._step, self._spent = step, 0.0
            self._wanted = time.monotonic() >= self._due
        return self._wanted

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the time to write a checkpoint. The next pause depends on the sum over all runs."""
        begun = time.monotonic()
        yield
        self._spent += time.monotonic() - begun
        self._due = time.monotonic() + _pause(self._spent)


def _pause(seconds: float) -> float:
    """Return the seconds until the next checkpoint, given the seconds that the last one took.

    >>> _pause(0.02), _pause(2.0), _pause(30.0)
    (0.0, 120.0, 600.0)
    """
    return 0.0 if seconds < SLOW else min(PAUSE * seconds, MOST_PAUSE)


def resume_together(recorders: Sequence[Recorder]) -> None:
    """Let runs in lockstep resume from the same outer step, the last one of which all have a checkpoint.

    A stacked run rounds differently from a single one. If all runs resume from the same step, they are stacked as they
    would have been without the interruption, and their numbers are equal bit for bit.
    """
    steps = [step for recorder in recorders if (step := recorder.newest_step()) is not None]
    for recorder in recorders if steps else ():
        recorder.start_by(min(steps))


class FolderRecorder(Recorder):
    """Writes a journal and the last two checkpoints into a folder.

    Args:
        folder: the run folder; it is made if it does not exist.
        resume: resume from the last checkpoint, if there is one.
        settings: the settings that identify the run. A folder with other settings is refused.
        parts: `parts(checksums=…)` describes the present modules and losses of the run. They must be equal too, except
            for parts that training changes.
        schedule: decides after which outer steps checkpoints are written; the runs of a grid share one.

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
        schedule: CheckpointSchedule | None = None,
    ) -> None:
        self.folder, self._resume, self._schedule, self._parts = folder, resume, schedule or CheckpointSchedule(), parts
        self._latest: int | None = None
        self._settings = settings if parts is None or PARTS in settings else {**settings, PARTS: parts(checksums=True)}
        self._versions = versions_of("torch", "numpy")
        self._journal: Journal | None = None
        self._changed: set[str] = set()
        self._written: dict[str, set[int]] = {}
        self._ahead: dict[str, dict[int, Row]] = {}
        if has_content(folder / JOURNAL) or list_checkpoints(folder):
            self._check_early()

    def part(self, name: str, schedule: CheckpointSchedule | None = None, **settings: Any) -> Recorder:
        """Return the recorder of a sub-folder."""
        folder, own = folder_inside(self.folder, name), {**self._settings, **settings, "part": name}
        return FolderRecorder(folder, resume=self._resume, settings=own, parts=self._parts, schedule=schedule)

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
        """Return the state of the newest intact checkpoint; None for a new run.

        If the journal differs from the checkpoint, the rows of the checkpoint are appended to the journal.

        Raises:
            RunFolderError: the folder belongs to another run or version, or no checkpoint is intact.
        """
        clear_partial(self.folder)
        lines = read_lines(self.folder)
        saved = self._newest(device)
        self._ahead = {field: _history(lines, kind) for field, kind in KINDS.items()}
        starts = starts_of(lines)
        if saved is None:
            self._begin(starts)
            return None
        self._changed = set(saved.get("moved", []))
        state: State = saved["state"]
        self._repair(state, starts, saved)
        if saved["versions"] == self._versions:
            self._settings = saved["settings"]  # from the start of the run; training may have changed the present ones
        else:
            self._write_start(self._settings, self._versions)
        self._write("resume", outer_steps_done=len(state["rows"]), versions=self._versions)
        self._write_rows(state)
        return state

    def save(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Write a checkpoint if one is due, then the new rows.

        The journal may be ahead of the last checkpoint. A resumed run repeats those steps and finds their rows written.
        """
        present = state()
        step = len(present["rows"])
        if last or self._schedule.is_due(step):
            with self._schedule.timed():
                save_checkpoint(self.folder, step, self._document(present))
        self._write_rows(present)

    def end(self, **fields: Any) -> None:
        """Write how the run ended."""
        self._write("end", **fields)

    def _document(self, present: State) -> State:
        """Return the content of a checkpoint: the settings at the start, the parts changed since then, the state."""
        if self._parts is not None:
            self._changed |= set(changed_parts(self._settings[PARTS], self._parts(checksums=False)))
        document = {"settings": self._settings, "versions": self._versions, "state": present}
        return {**document, "moved": sorted(self._changed)} if self._changed else document

    def _begin(self, starts: list[Row]) -> None:
        """Start a new run in a folder without a checkpoint."""
        if starts:
            self._check(starts[-1])
        if any(self._ahead.values()):
            raise RunFolderError(f"{self.folder} has a journal of a run but no checkpoint; choose another `run_dir`")
        self._written = {field: set() for field in KINDS}
        self._write_start(self._settings, self._versions)

    def _check_early(self) -> None:
        """Refuse a folder of another run before training starts."""
        if not self._resume:
            raise RunFolderError(
                f"{self.folder} holds a run already; pass resume=True to go on with it, or another `run_dir`"
            )
        if self._newest(torch.device("cpu")) is None:
            for start in starts_of(read_lines(self.folder))[-1:]:
                self._check(start)

    def newest_step(self) -> int | None:
        """Return the outer step of the newest checkpoint; None without one, or if the run converged or diverged."""
        ends = [line.get("status", "") for line in read_lines(self.folder) if line["kind"] in ("end", "resume")]
        paths = list_checkpoints(self.folder)
        return None if not paths or (ends and ended_early(ends[-1])) else step_of(paths[0])

    def start_by(self, step: int) -> None:
        """Resume from the newest checkpoint that is not after this outer step, if there is one."""
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
        """Return the newest checkpoint that is intact and passes all checks; None without checkpoints."""
        damaged = []
        for path in self._candidates():
            try:
                found: State = load_checkpoint(path, device)
                check_document(found, path.name)
                self._check(found)
                check_state(found["state"], self._settings)
                if path != checkpoint_path(self.folder, len(found["state"]["rows"])):
                    raise DamagedError(f"it holds {len(found['state']['rows'])} rows, which is not its number")
            except (DamagedError, SchemaError) as error:
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
        """Raise if a checkpoint or the first line of a journal belongs to another run or version."""
        versions = found["versions"]
        if versions.get("pactune") != self._versions["pactune"]:
            raise RunFolderError(
                f"{self.folder} was written by pactune {versions.get('pactune')} and this is "
                f"{self._versions['pactune']}; resume with that version, or start anew in another `run_dir`"
            )
        if versions != self._versions:
            logger.warning("%s: resuming with other versions than %s; numbers may differ", self.folder, versions)
        ignored = frozenset(found.get("moved", ()))
        words = differences(
            found["settings"], self._settings, ignored=ignored, versions_differ=versions != self._versions
        )
        if words:
            raise RunFolderError(f"{self.folder} holds another run: {words}. Choose another `run_dir`")

    def _repair(self, state: State, starts: list[Row], saved: State) -> None:
        """Append the settings and rows of the checkpoint that the journal lacks; warn if it was damaged."""
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
        """True if a row must be written: the journal lacks it, or has other numbers (times are not compared)."""
        if row["outer_step"] in self._written[field]:
            return False
        found = self._ahead[field].get(row["outer_step"])
        return found is None or _without_times(found) != _without_times(row)

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
    """Return the rows of a journal by outer step; the later row if a step was written twice."""
    return {line["outer_step"]: line for line in lines if line["kind"] == kind}


def _without_times(row: Row) -> dict[str, str]:
    """Return the numbers of a row as text, so that NaN equals NaN."""
    return {name: repr(value) for name, value in row.items() if name not in (*JOURNAL_COLUMNS, *CLOCK_COLUMNS)}
