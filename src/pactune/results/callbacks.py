"""What may listen to a run, and the progress bar as the first listener."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pactune.checks import check_flag, shown
from pactune.columns import Row
from pactune.errors import SettingError, warn_user
from pactune.extras import is_installed, require

if TYPE_CHECKING:
    from pactune.results.result import Result
    from pactune.tuning.tuner import Tuner

__all__ = ["Callback", "ProgressBar", "ProgressLines", "as_callbacks", "progress_for", "report_error"]

LINE_SECONDS = 10.0  # at most one plain line in this time


class Callback:
    """Override what you need; raise `StopIteration` in `on_outer_step` to end the run."""

    def on_fit_begin(self, tuner: Tuner, outer_steps: int) -> None:
        """Before the first outer step."""

    def on_resume(self, tuner: Tuner, rows: list[Row]) -> None:
        """After `on_fit_begin` when a run is resumed. `rows` is the history so far."""

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """After the inner steps of an outer step, before λ moves. `row` is the new row of the history."""

    def on_hyper_step(self, tuner: Tuner) -> None:
        """After λ moved, which it does at the beginning of the next outer step; step a scheduler of `outer` here."""

    def on_plain_step(self, tuner: Tuner, row: Row) -> None:
        """After an outer step of the plain run, while the model and the hyper module hold its values."""

    def on_fit_end(self, tuner: Tuner, result: Result) -> None:
        """At the end: done, converged, stopped, interrupted or diverged. `result.status` says which."""

    def on_fit_error(self, tuner: Tuner, error: BaseException) -> None:
        """When any other error ends the run, also one that another listener raised; close what is open here.

        The error is raised afterwards. The run may have failed before `on_fit_begin`.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know of this listener: numbers, texts, tensors and containers of them.

        A listener that steps a scheduler returns the scheduler's `state_dict()` here.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned, before `on_fit_begin`."""


class ProgressBar(Callback):
    """A bar on stderr, for terminals; it needs rich."""

    def __init__(self, total: int) -> None:
        require("rich")
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True)
        self._task = self.bar.add_task("", total=total)

    def on_resume(self, tuner: Tuner, rows: list[Row]) -> None:
        """Move the bar over what is done."""
        self.bar.update(self._task, advance=len(rows))

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """Move the bar."""
        self.bar.update(self._task, advance=1, description=_summary(row))


class ProgressLines(Callback):
    """One throttled plain line on stderr, for logs and for terminals without rich."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._last = total, 0, time.monotonic()

    def on_resume(self, tuner: Tuner, rows: list[Row]) -> None:
        """Count what is done."""
        self._done += len(rows)

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """Print a line, at most every ten seconds."""
        self._done += 1
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(f"outer step {self._done}/{self._total}: {_summary(row)}", file=sys.stderr, flush=True)


def as_callbacks(given: object) -> tuple[Callback, ...]:
    """Return the listeners of a run, checked."""
    listeners = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if isinstance(given, Callback) or not all(isinstance(listener, Callback) for listener in listeners):
        raise SettingError(f"`callbacks` must be a list of Callback objects, got {shown(given)}")
    return listeners


def report_error(listeners: Iterable[Callback], tuner: Tuner, error: BaseException) -> None:
    """Tell every listener of an error. A listener that fails now only causes a warning and hides no error."""
    for listener in listeners:
        try:
            listener.on_fit_error(tuner, error)
        except Exception as another:
            warn_user(f"{type(listener).__name__}.on_fit_error failed: {another!r}")


@contextmanager
def progress_for(wanted: bool | None, *, total: int) -> Iterator[Callback]:
    """Give the listener for `progress`: True shows it, False does not, None shows it on a terminal only."""
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
    shown = [f"objective {row['objective']:.4g}"]
    shown += [f"validation risk {row['valid_risk']:.4g}"] if "valid_risk" in row else []
    shown += [f"test accuracy {row['test_accuracy']:.3f}"] if "test_accuracy" in row else []
    return ", ".join(shown)
