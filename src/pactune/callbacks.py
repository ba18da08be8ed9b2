"""What may listen to a run, and the progress bar as the first listener."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from pactune.result import Result
    from pactune.tuner import Tuner

__all__ = ["Callback", "ProgressBar", "ProgressLines", "progress_for"]

Row = dict[str, Any]

LINE_SECONDS = 10.0  # at most one plain line in this time


class Callback:
    """Override what you need; raise `StopIteration` in `on_outer_step` to end the run."""

    def on_fit_begin(self, tuner: Tuner, outer_steps: int) -> None:
        """Before the first outer step."""

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """After the inner steps of an outer step, before λ moves. `row` is the new row of the history."""

    def on_fit_end(self, tuner: Tuner, result: Result) -> None:
        """At the end, however it came."""


class ProgressBar(Callback):
    """A bar on stderr, for terminals."""

    def on_fit_begin(self, tuner: Tuner, outer_steps: int) -> None:
        """Draw the empty bar."""
        columns = (
            TextColumn("tuning"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=outer_steps)
        self._bar.start()

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """Move the bar."""
        self._bar.update(self._task, advance=1, description=_summary(row))

    def on_fit_end(self, tuner: Tuner, result: Result) -> None:
        """Take the bar away."""
        self._bar.stop()


class ProgressLines(Callback):
    """One throttled plain line on stderr, for logs."""

    def on_fit_begin(self, tuner: Tuner, outer_steps: int) -> None:
        """Remember the number of steps."""
        self._total, self._last = outer_steps, time.monotonic()

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """Print a line, at most every ten seconds."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(f"outer step {row['outer_step']}/{self._total}: {_summary(row)}", file=sys.stderr, flush=True)


def progress_for(wanted: bool | None) -> list[Callback]:
    """Return the listener for `progress`: True shows it, False does not, None shows it on a terminal only."""
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and not terminal):
        return []
    return [ProgressBar() if terminal else ProgressLines()]


def _summary(row: Row) -> str:
    shown = [f"objective {row['objective']:.4g}", f"validation risk {row['valid_risk']:.4g}"]
    shown += [f"test accuracy {row['test_accuracy']:.3f}"] if "test_accuracy" in row else []
    return ", ".join(shown)
