"""Progress on stderr: one line that is rewritten on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

__all__ = ["stderr_progress"]

_PLAIN_SECONDS = 10.0
_TERMINAL_SECONDS = 0.1


def stderr_progress(name: str) -> Callable[[str, int, int], None]:
    """Return a callback that shows the name of a part, its number of steps done, and of all its steps."""
    terminal = sys.stderr.isatty()
    pause, last = (_TERMINAL_SECONDS if terminal else _PLAIN_SECONDS), time.monotonic()

    def show(part: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last < pause:
            return
        last = time.monotonic()
        start, end = ("\r\x1b[K", "") if terminal else ("", "\n")
        print(f"{start}{name}: {part} {done}/{total}", end=end, file=sys.stderr, flush=True)

    return show
