"""Recorders save the state of a run and load it to resume. The default saves nothing; `run_dir` asks for files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from pactune.columns import Row
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
from pactune.tracking.row_log import RowLog, RowMark, find_rows, overwritten_rows
from pactune.tracking.run_folder import versions_of
from pactune.tracking.state_schema import check_document, check_rows, check_state
from pactune.tracking.status import ended_early

__all__ = ["CheckpointSchedule", "FolderRecorder", "Recorder", "resume_together"]

State = dict[str, Any]
Histories = Mapping[str, Sequence[Row]]  # by the names in `KINDS`
KINDS = {"rows": "row", "plain_rows": "plain row"}  # names of histories, and the journal's kinds of their lines
FREE = 1.0  # seconds of writing after which a run writes no longer after every outer step
PAUSE = (
    60.0  # then the pause after a checkpoint, as a multiple of its duration: ten large runs side by side wait a sixth
)
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

    def save(self, step: int, state: Callable[[], State], histories: Histories, *, last: bool = False) -> None:
        """Save the state after an outer step.

        Args:
            step: the number of outer steps done.
            state: returns the state without the histories.
            histories: the rows so far, by the names in `KINDS`.
            last: True when the run is over.
        """

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
        self._step, self._due, self._spent, self._total, self._wanted = -1, 0.0, 0.0, 0.0, True

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
        now = time.monotonic()
        self._spent, self._total = self._spent + now - begun, self._total + now - begun
        self._due = now + _pause(self._spent, self._total)


def _pause(seconds: float, total: float) -> float:
    """Return the seconds until the next checkpoint, given those that the last one and that all of them took.

    >>> _pause(0.02, 0.1), _pause(0.02, 5.0), _pause(2.0, 2.0), _pause(30.0, 30.0)
    (0.0, 1.2, 120.0, 600.0)
    """
    return 0.0 if total < FREE else min(PAUSE * seconds, MOST_PAUSE)


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
        self._logs: dict[str, RowLog] = {}
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
            if error is not None and self._logs:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                self._journal.append("end", status=status, error=f"{type(error).__name__}: {error}")
        except RunFolderError as second:
            logger.warning("the end of the run cannot be written: %s", second)
        finally:
            self._journal.close()
            self._journal = None

    def load(self, device: torch.device) -> State | None:
        """Return the state of the newest intact checkpoint, with the rows of the journal; None for a new run.

        Raises:
            RunFolderError: the folder belongs to another run or version, or no checkpoint is intact.
        """
        clear_partial(self.folder)
        lines = read_lines(self.folder)
        found = self._newest(device, lines)
        if found is None:
            self._begin(lines)
            return None
        saved, rows = found
        self._changed = set(saved.get("moved", []))
        self._repair(lines, saved, rows)
        if saved["versions"] == self._versions:
            self._settings = saved["settings"]  # from the start of the run; training may have changed the present ones
        else:
            self._write_start(self._settings, self._versions)
        self._write("resume", outer_steps_done=saved["step"], versions=self._versions)
        self._logs = {name: RowLog(kind, lines, _mark_of(rows[name])) for name, kind in KINDS.items()}
        return {**saved["state"], **rows}

    def save(self, step: int, state: Callable[[], State], histories: Histories, *, last: bool = False) -> None:
        """Write the new rows, then a checkpoint if one is due, whose rows are on the disk before it.

        The journal may be ahead of the last checkpoint. A resumed run repeats those steps and finds their rows written.
        """
        assert self._journal is not None
        fresh = [row for name, log in self._logs.items() for row in log.advance(histories.get(name, ()))]
        due = last or self._schedule.is_due(step)
        if not due:
            self._journal.extend(fresh, sync=False)
            return
        with self._schedule.timed():
            self._journal.extend(fresh)
            save_checkpoint(self.folder, step, self._document(step, state()))

    def end(self, **fields: Any) -> None:
        """Write how the run ended."""
        self._write("end", **fields)

    def _document(self, step: int, present: State) -> State:
        """Return the content of a checkpoint: the settings at the start, the parts changed since then, the state."""
        if self._parts is not None:
            self._changed |= set(changed_parts(self._settings[PARTS], self._parts(checksums=False)))
        marks = {name: log.mark._asdict() for name, log in self._logs.items()}
        document = {"settings": self._settings, "versions": self._versions, "step": step, "histories": marks}
        return {**document, "state": present, **({"moved": sorted(self._changed)} if self._changed else {})}

    def _begin(self, lines: list[Row]) -> None:
        """Start a new run in a folder without a checkpoint."""
        for start in starts_of(lines)[-1:]:
            self._check(start)
        if any(line["kind"] in KINDS.values() for line in lines):
            raise RunFolderError(f"{self.folder} has a journal of a run but no checkpoint; choose another `run_dir`")
        self._logs = {name: RowLog(kind) for name, kind in KINDS.items()}
        self._write_start(self._settings, self._versions)

    def _check_early(self) -> None:
        """Refuse a folder of another run before training starts."""
        if not self._resume:
            raise RunFolderError(
                f"{self.folder} holds a run already; pass resume=True to go on with it, or another `run_dir`"
            )
        lines = read_lines(self.folder)
        if self._newest(torch.device("cpu"), lines) is None:
            for start in starts_of(lines)[-1:]:
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

    def _newest(self, device: torch.device, lines: list[Row]) -> tuple[State, dict[str, list[Row]]] | None:
        """Return the newest intact checkpoint with the rows before it; None without checkpoints.

        If the journal has lost rows of every checkpoint, the newest one is returned with the rows that are left.
        """
        damaged, incomplete = [], list[tuple[State, dict[str, list[Row]]]]()
        for path in self._candidates():
            try:
                saved, rows, whole = self._read(path, device, lines)
            except (DamagedError, SchemaError) as error:
                logger.warning("%s: %s; trying the one before", path.name, error)
                damaged.append(f"{path.name}: {error}")
                continue
            if whole:
                return saved, rows
            logger.warning("%s: the journal lacks rows before it; trying the one before", path.name)
            incomplete.append((saved, rows))
        if damaged and not incomplete:
            raise RunFolderError(
                f"{self.folder}: no checkpoint is whole ({'; '.join(damaged)}); start anew in another `run_dir`"
            )
        return incomplete[0] if incomplete else None

    def _read(self, path: Path, device: torch.device, lines: list[Row]) -> tuple[State, dict[str, list[Row]], bool]:
        """Return a checkpoint, its rows, and True if the journal has them all."""
        saved: State = load_checkpoint(path, device)
        check_document(saved, path.name)
        self._check(saved)
        if path != checkpoint_path(self.folder, saved["step"]):
            raise DamagedError(f"it is of step {saved['step']}, which is not its number")
        check_state(saved, self._settings)
        marks = saved["histories"]
        found = {name: find_rows(kind, lines, RowMark(**marks[name])) for name, kind in KINDS.items()}
        whole = all(complete for _, complete in found.values())
        rows = check_rows({name: rows for name, (rows, _) in found.items()}, saved["state"], partly=not whole)
        return saved, rows, whole

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

    def _repair(self, lines: list[Row], saved: State, rows: dict[str, list[Row]]) -> None:
        """Write again what the checkpoint knows better than the journal; warn if the journal was damaged."""
        assert self._journal is not None
        starts, written = starts_of(lines), list[str]()
        if not starts or starts[-1]["settings"] != saved["settings"]:
            self._write_start(saved["settings"], saved["versions"])
            written.append("its first line")
        wrong = [row for name, kind in KINDS.items() for row in overwritten_rows(kind, lines, rows[name])]
        if wrong:
            self._journal.extend(wrong)
            written.append(f"{len(wrong)} rows that differ")
        lost = sum(saved["histories"][name]["rows"] - len(rows[name]) for name in KINDS)
        if written or lost:
            repaired = f" and is repaired from the checkpoint: {' and '.join(written)} written again" if written else ""
            missing = f"; {lost} rows are lost" if lost else ""
            warn_user(f"{self.folder / JOURNAL} was damaged{repaired}{missing}")

    def _write_start(self, settings: dict[str, Any], versions: dict[str, str]) -> None:
        self._write("start", settings=settings, seed=settings.get("seed"), versions=versions)

    def _write(self, kind: str, **fields: Any) -> None:
        assert self._journal is not None
        self._journal.append(kind, **fields)


def _mark_of(rows: Sequence[Row]) -> RowMark:
    mark = RowMark()
    for row in rows:
        mark = mark.after(row)
    return mark
