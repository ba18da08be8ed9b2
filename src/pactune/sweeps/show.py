"""What a person sees while a sweep runs: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pactune.extras import is_installed
from pactune.results.callbacks import LINE_SECONDS
from pactune.sweeps.board import CellState

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["Show", "showing"]

Show = Callable[[Sequence[CellState]], None]
SHOWN = 20  # rows of the live table
ORDER = ("running", "failed", "waiting", "completed", "converged", "interrupted")


@contextmanager
def showing(wanted: bool | None, outer_steps: int) -> Iterator[Show]:
    """Give a function that shows the cells: True shows them, False does not, None shows them on a terminal only."""
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and not terminal):
        yield lambda _: None
    elif terminal and is_installed("rich"):
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield lambda states: live.update(_view(states, outer_steps), refresh=True)
    else:
        yield _Lines(outer_steps)


class _Lines:
    """A summary at most every ten seconds and at the end; a failure or a new attempt at once."""

    def __init__(self, outer_steps: int) -> None:
        self._outer_steps, self._last = outer_steps, time.monotonic()
        self._told: set[str] = set()  # every line is printed once
        self._over = False

    def __call__(self, states: Sequence[CellState]) -> None:
        for state in states:
            if state.failure is not None:
                self._tell(f"{state.cell.name} failed: {state.failure.error}")
            elif state.watch.attempts > 1:
                self._tell(f"{state.cell.name} was resumed, attempt {state.watch.attempts}")
        over = not any(state.pending for state in states)
        if (over and not self._over) or time.monotonic() - self._last >= LINE_SECONDS:
            self._over = over
            self._last = time.monotonic()
            print(f"sweep: {_summary(states, self._outer_steps)}", file=sys.stderr, flush=True)

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            print(f"sweep: {line}", file=sys.stderr, flush=True)


def _summary(states: Sequence[CellState], outer_steps: int) -> str:
    counts = Counter(state.status for state in states)
    done = counts["completed"] + counts["converged"]
    words = [f"{done}/{len(states)} cells done"]
    words += [
        f"{counts[status]} {status}" for status in ("running", "waiting", "failed", "interrupted") if counts[status]
    ]
    steps = sum(state.watch.steps for state in states)
    return f"{', '.join(words)}; {steps}/{len(states) * outer_steps} outer steps"


def _view(states: Sequence[CellState], outer_steps: int) -> Group:
    """Return the cells that matter most just now, and a summary of all."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("cell", "status", "outer step", "objective", "tried", box=None, pad_edge=False)
    urgent = sorted(states, key=lambda state: ORDER.index(state.status))
    for state in urgent[:SHOWN]:
        objective = "" if state.watch.objective is None else f"{state.watch.objective:.4g}"
        tried = str(state.watch.attempts) if state.watch.attempts else ""
        table.add_row(state.cell.name, state.status, f"{state.watch.steps}/{outer_steps}", objective, tried)
    if len(urgent) > SHOWN:
        table.add_row(f"and {len(urgent) - SHOWN} more", "", "", "", "")
    return Group(table, Text(_summary(states, outer_steps)))
