"""Ctrl-C while a run goes on: it waits for a moment at which nothing is half done.

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


class _Waiting:
    """The one Ctrl-C that waits in this process.

    Attributes:
        active: whether a run defers Ctrl-C.
        immediate: whether code of the user runs, which Ctrl-C interrupts at once.
        received: whether Ctrl-C has come.
    """

    active = False
    immediate = False
    received = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.immediate or self.received:
            self.received = False
            raise KeyboardInterrupt
        self.received = True


_waiting = _Waiting()


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let the first Ctrl-C wait for `check_interrupt`.

    Nothing changes outside of the main thread, inside another such block, or where the caller has a handler of their
    own for SIGINT.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or _waiting.active or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _waiting.active, _waiting.received = True, False
    signal.signal(signal.SIGINT, _waiting.handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _waiting.active = False


@contextmanager
def immediate_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt the code of a user, such as a listener, at once."""
    check_interrupt()
    before, _waiting.immediate = _waiting.immediate, True
    try:
        yield
    finally:
        _waiting.immediate = before


def check_interrupt() -> None:
    """Raise the Ctrl-C that waits, if there is one."""
    if _waiting.received and take_interrupt():
        raise KeyboardInterrupt


def take_interrupt() -> bool:
    """Return whether a Ctrl-C waits for the main thread, which receives signals, and forget it."""
    if threading.current_thread() is not threading.main_thread():
        return False
    received, _waiting.received = _waiting.received, False
    return received
