"""The display of a running sweep on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pactune.extras import is_installed
from pactune.results.callbacks import LINE_SECONDS, time_left
from pactune.sweeps.cell_state import CellState
from pactune.tracking.status import succeeded

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["Display", "open_display"]

Display = Callable[[Sequence[CellState]], None]
TABLE_ROWS = 20  # of the live table
ORDER = ("running", "failed", "waiting", "completed", "converged", "interrupted")  # in the live table


@contextmanager
def open_display(progress: bool | None, outer_steps: int) -> Iterator[Display]:
    """Yield a function that displays the cells.

    Args:
        progress: True displays the cells, False does not, None displays them on a terminal only.
        outer_steps: of every cell.
    """
    terminal = sys.stderr.isatty()
    if progress is False or (progress is None and not terminal):
        yield lambda _: None
    elif terminal and is_installed("rich"):
        from rich.console import Console
        from rich.live import Live

        clock = _Clock(outer_steps)
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield lambda states: live.update(live_table(states, outer_steps, clock.time_left(states)), refresh=True)
    else:
        yield _PlainLines(outer_steps)


class _Clock:
    """Estimates the time left from the outer steps that were made since it was first asked."""

    def __init__(self, outer_steps: int) -> None:
        self._outer_steps, self._start, self._first = outer_steps, time.monotonic(), -1

    def time_left(self, states: Sequence[CellState]) -> str:
        """Return the estimate in words; empty before the first step."""
        steps = sum(state.progress.steps for state in states)
        if self._first < 0:
            self._first, self._start = steps, time.monotonic()
        left = sum(self._outer_steps - state.progress.steps for state in states if state.pending)
        return time_left(time.monotonic() - self._start, steps - self._first, left)


class _PlainLines:
    """Prints a summary every `LINE_SECONDS` and at the end, and every failure and new attempt at once."""

    def __init__(self, outer_steps: int) -> None:
        self._outer_steps, self._last = outer_steps, time.monotonic()
        self._printed: set[str] = set()
        self._clock = _Clock(outer_steps)
        self._over = False

    def __call__(self, states: Sequence[CellState]) -> None:
        for state in states:
            if state.failure is not None:
                self._print_once(f"{state.name} failed: {state.failure.error}")
            elif state.progress.attempts > 1:
                self._print_once(f"{state.name} was resumed, attempt {state.progress.attempts}")
        over, left = not any(state.pending for state in states), self._clock.time_left(states)
        if (over and not self._over) or time.monotonic() - self._last >= LINE_SECONDS:
            self._over = over
            self._last = time.monotonic()
            print(f"sweep: {_summary(states, self._outer_steps, left)}", file=sys.stderr, flush=True)

    def _print_once(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            print(f"sweep: {line}", file=sys.stderr, flush=True)


def _summary(states: Sequence[CellState], outer_steps: int, left: str = "") -> str:
    counts = Counter(state.status for state in states)
    done = sum(succeeded(state.status) for state in states)
    parts = [f"{done}/{len(states)} cells done"]
    parts += [
        f"{counts[status]} {status}" for status in ("running", "waiting", "failed", "interrupted") if counts[status]
    ]
    steps = sum(state.progress.steps for state in states)
    return f"{', '.join(parts)}; {steps}/{len(states) * outer_steps} outer steps" + (f", {left}" if left else "")


def live_table(states: Sequence[CellState], outer_steps: int, left: str = "") -> Group:
    """Return a table of the first `TABLE_ROWS` cells in the order of `ORDER`, and a summary of all cells."""
    from rich.console import Group
    from rich.table import Column, Table
    from rich.text import Text

    names = [Column(title, no_wrap=True) for title in ("status", "outer step", "objective", "tried")]
    table = Table(Column("cell", overflow="fold"), *names, box=None, pad_edge=False)
    ordered = sorted(states, key=lambda state: ORDER.index(state.status))
    for state in ordered[:TABLE_ROWS]:
        progress = state.progress
        objective = "" if progress.objective is None else f"{progress.objective:.4g}"
        attempts = str(progress.attempts) if progress.attempts else ""
        table.add_row(state.name, state.status, f"{progress.steps}/{outer_steps}", objective, attempts)
    if len(ordered) > TABLE_ROWS:
        table.add_row(f"and {len(ordered) - TABLE_ROWS} more", "", "", "", "")
    return Group(table, Text(_summary(states, outer_steps, left)))
