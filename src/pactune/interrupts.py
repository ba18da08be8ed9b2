"""Defer Ctrl-C during a run to a moment at which the state is consistent.

Python raises `KeyboardInterrupt` between any two instructions, also after the chains have moved and before their row is
written. Inside `deferred_interrupts` the first Ctrl-C only sets a flag. The loops over inner steps, mini-batches and
outer steps call `check_interrupt`, which raises. A second Ctrl-C is raised at once, for a step that takes too long.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["check_interrupt", "deferred_interrupts", "immediate_interrupts", "take_interrupt"]


class _Deferral:
    """The state of the deferred Ctrl-C of this process.

    Attributes:
        immediate: True while code of the user runs, which Ctrl-C interrupts at once.
        received: True after Ctrl-C, until it is raised.
    """

    immediate = False
    received = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.immediate or self.received:
            self.received = False
            raise KeyboardInterrupt
        self.received = True


_deferral = _Deferral()


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer the first Ctrl-C to the next `check_interrupt`.

    The block has no effect outside of the main thread, inside another such block, or if the caller has installed a
    handler for SIGINT.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _deferral.immediate = _deferral.received = False  # Ctrl-C may have ended an earlier block before it cleaned up
    try:
        signal.signal(signal.SIGINT, _deferral.handle)
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def immediate_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt the code of a user, such as a callback, at once."""
    check_interrupt()
    before, _deferral.immediate = _deferral.immediate, True
    try:
        yield
    finally:
        _deferral.immediate = before


def check_interrupt() -> None:
    """Raise a deferred Ctrl-C, if there is one."""
    if _deferral.received and take_interrupt():
        raise KeyboardInterrupt


def take_interrupt() -> bool:
    """Return True if a Ctrl-C is deferred, and clear it. Only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        return False
    received, _deferral.received = _deferral.received, False
    return received
