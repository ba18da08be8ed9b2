"""Progress on stderr: one line that is rewritten on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from pactune.results.callbacks import LINE_SECONDS, time_left

__all__ = ["stderr_progress"]

_TERMINAL_SECONDS = 0.1


def stderr_progress(name: str) -> Callable[[str, int, int], None]:
    """Return a callback that shows a part, its steps done and all its steps, and the time left for the part."""
    terminal = sys.stderr.isatty()
    pause, last = (_TERMINAL_SECONDS if terminal else LINE_SECONDS), time.monotonic()
    begun: dict[str, tuple[float, int]] = {}  # when a part began, and at which step

    def show(part: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        start, first = begun.setdefault(part, (now, done))
        if now - last < pause:
            return
        last = now
        left = time_left(now - start, done - first, total - done)
        before, after = ("\r\x1b[K", "") if terminal else ("", "\n")
        words = f"{name}: {part} {done}/{total}" + (f", {left} for this part" if left else "")
        print(f"{before}{words}", end=after, file=sys.stderr, flush=True)

    return show
