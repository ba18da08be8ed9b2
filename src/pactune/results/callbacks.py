"""`Callback`, the base of callbacks of a run, and the callbacks that show its progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pactune.checks import check_flag, shown
from pactune.columns import Row, column_title, judged_column
from pactune.errors import SettingError, warn_user
from pactune.extras import is_installed, require

if TYPE_CHECKING:
    from pactune.results.result import Result

__all__ = [
    "Callback",
    "Progress",
    "ProgressBar",
    "ProgressLines",
    "as_callbacks",
    "progress_for",
    "report_error",
    "time_left",
]

LINE_SECONDS = 10.0  # at most one plain line in this time
BAR_WIDTH = 16  # characters
FEW = 2  # parts after the first one, before the time left is estimated


class Callback:
    """Base of callbacks: override the events that you need.

    In all events `tuner` is the `Tuner` that runs. Raise `StopIteration` in `on_outer_step` to end the run.
    """

    def on_fit_begin(self, tuner: Any, outer_steps: int) -> None:
        """Before the first outer step."""

    def on_resume(self, tuner: Any, rows: list[Row]) -> None:
        """After `on_fit_begin` when a run is resumed. `rows` is the history so far."""

    def on_outer_step(self, tuner: Any, row: Row) -> None:
        """After the inner steps of an outer step, before λ moves. `row` is the new row of the history."""

    def on_hyper_step(self, tuner: Any) -> None:
        """After λ moved, which it does at the beginning of the next outer step; step a scheduler of `outer` here."""

    def on_plain_step(self, tuner: Any, row: Row) -> None:
        """After an outer step of plain training, while the model and the hyper module hold its values."""

    def on_fit_end(self, tuner: Any, result: Result) -> None:
        """At the end of a run without an error; `result.status` tells how it ended."""

    def on_fit_error(self, tuner: Any, error: BaseException) -> None:
        """When an error ends the run, also an error of another callback. Close open files here.

        The error is raised afterwards. The run may have failed before `on_fit_begin`.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run restores: numbers, texts, tensors and containers of them.

        A callback that steps a scheduler returns the scheduler's `state_dict()` here.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. A resumed run calls this before `on_fit_begin`."""


class Progress(Callback):
    """Counts the finished parts of a run, such as outer steps. This base shows nothing.

    Args:
        total: the number of parts.
    """

    def __init__(self, total: int) -> None:
        self._stage, self._done, self._total = "outer step", 0, total
        self._resumed, self._start = 0, time.monotonic()
        self._first = self._start  # the end of the first part

    def begin(self, stage: str, left: int) -> None:
        """Name what runs now. `left` is the number of parts to the end of the run, as far as it is known."""
        self._stage, self._total = stage, self._done + left

    def advance(self, words: str = "") -> None:
        """Count a part as finished, and show some words about it with an estimate of the time left."""
        self._done += 1
        self._total = max(self._total, self._done)
        if self._done - self._resumed == 1:
            self._first = time.monotonic()
        self._show(words, self._time_left())

    def on_resume(self, tuner: Any, rows: list[Row]) -> None:
        """Count the outer steps that are done."""
        self._done += len(rows)
        self._resumed += len(rows)

    def on_outer_step(self, tuner: Any, row: Row) -> None:
        """Count an outer step."""
        self.advance(_summary(row))

    def _time_left(self) -> str:
        """Return the time left if each part takes as long as the mean of the parts so far; empty if it is not known.

        The first part does not count. It also records the steps, which can take longer than all parts after it.
        """
        measured = self._done - self._resumed - 1
        if measured < FEW:
            return ""
        return time_left(time.monotonic() - self._first, measured, self._total - self._done)

    def _show(self, words: str, time_left: str) -> None:
        """Show the count, the words and the time left. Both texts may be empty."""


class ProgressBar(Progress):
    """A bar on stderr, for terminals; it needs rich."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        require("rich")
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        whole, rest = Column(no_wrap=True), Column(ratio=1, no_wrap=True, overflow="ellipsis")
        columns = (
            progress.TextColumn("{task.fields[stage]}", table_column=whole),
            progress.BarColumn(bar_width=BAR_WIDTH),
            progress.TextColumn("{task.completed}/{task.total}", table_column=whole),
            progress.TextColumn("{task.description}", table_column=rest),
        )
        self.bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
        self._task = self.bar.add_task("", total=total, stage="starting")

    def _show(self, words: str, time_left: str) -> None:
        text = _joined(time_left, words)  # a narrow terminal cuts the end
        self.bar.update(self._task, completed=self._done, total=self._total, description=text, stage=self._stage)


class ProgressLines(Progress):
    """One throttled plain line on stderr, for logs and for terminals without rich."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._last = self._start

    def _show(self, words: str, time_left: str) -> None:
        """Print a line, at most every ten seconds."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            count = f"{self._stage} {self._done}/{self._total}"
            print(_joined(f"{count}: {words}" if words else count, time_left), file=sys.stderr, flush=True)


def as_callbacks(value: object) -> tuple[Callback, ...]:
    """Return the argument `callbacks` as a tuple; raise unless it is a list of callbacks."""
    callbacks = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if isinstance(value, Callback) or not all(isinstance(callback, Callback) for callback in callbacks):
        raise SettingError(f"`callbacks` must be a list of Callback objects, got {shown(value)}")
    return callbacks


def report_error(callbacks: Iterable[Callback], tuner: Any, error: BaseException) -> None:
    """Call `on_fit_error` of every callback. If one fails, it only causes a warning and does not hide the error."""
    for callback in callbacks:
        try:
            callback.on_fit_error(tuner, error)
        except Exception as another:
            warn_user(f"{type(callback).__name__}.on_fit_error failed: {another!r}")


@contextmanager
def progress_for(wanted: bool | None, *, total: int) -> Iterator[Progress]:
    """Yield the callback for the argument `progress`: True shows progress, False does not, None on a terminal only."""
    check_flag("progress", wanted, none="for a terminal only")
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and not terminal):
        yield Progress(total)
    elif terminal and is_installed("rich"):
        shown = ProgressBar(total)
        with shown.bar:
            yield shown
    else:
        yield ProgressLines(total)


def _summary(row: Row) -> str:
    columns = ("objective", "valid_risk", judged_column(row))
    return ", ".join(f"{column_title(name)} {row[name]:.4g}" for name in columns if name in row)


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def time_left(elapsed: float, done: int, left: int) -> str:
    """Return the time left if each part takes as long as the mean of the parts so far; empty if that is not known.

    >>> time_left(10.0, 5, 20), time_left(10.0, 0, 20), time_left(10.0, 5, 0)
    ('about 40 s left', '', '')
    """
    return f"about {_duration(elapsed / done * left)} left" if done > 0 and left > 0 else ""


def _duration(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> _duration(6.4), _duration(200), _duration(5050)
    ('6 s', '3 min 20 s', '1 h 24 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
