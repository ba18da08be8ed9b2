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

__all__ = ["Callback", "ProgressBar", "ProgressLines", "as_callbacks", "progress_for", "report_error"]

LINE_SECONDS = 10.0  # at most one plain line in this time


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


class ProgressBar(Callback):
    """A bar on stderr, for terminals; it needs rich."""

    def __init__(self, total: int) -> None:
        require("rich")
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True)
        self._task = self.bar.add_task("", total=total)

    def on_resume(self, tuner: Any, rows: list[Row]) -> None:
        """Move the bar past the outer steps that are done."""
        self.bar.update(self._task, advance=len(rows))

    def on_outer_step(self, tuner: Any, row: Row) -> None:
        """Move the bar."""
        self.bar.update(self._task, advance=1, description=_summary(row))


class ProgressLines(Callback):
    """One throttled plain line on stderr, for logs and for terminals without rich."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._last = total, 0, time.monotonic()

    def on_resume(self, tuner: Any, rows: list[Row]) -> None:
        """Count the outer steps that are done."""
        self._done += len(rows)

    def on_outer_step(self, tuner: Any, row: Row) -> None:
        """Print a line, at most every ten seconds."""
        self._done += 1
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(f"outer step {self._done}/{self._total}: {_summary(row)}", file=sys.stderr, flush=True)


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
def progress_for(wanted: bool | None, *, total: int) -> Iterator[Callback]:
    """Yield the callback for the argument `progress`: True shows progress, False does not, None on a terminal only."""
    check_flag("progress", wanted, none="for a terminal only")
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and not terminal):
        yield Callback()
    elif terminal and is_installed("rich"):
        shown = ProgressBar(total)
        with shown.bar:
            yield shown
    else:
        yield ProgressLines(total)


def _summary(row: Row) -> str:
    columns = ("objective", "valid_risk", judged_column(row))
    return ", ".join(f"{column_title(name)} {row[name]:.4g}" for name in columns if name in row)
