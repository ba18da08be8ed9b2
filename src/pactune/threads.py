"""The threads of a CPU: short work runs in one of them.

The threads of an operation wait for the last one. Where something else runs on a core, that takes milliseconds, however
short the operation is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["SHORT", "one_thread"]

SHORT = 3e7  # floating-point operations, up to which a second thread gains little (benchmarks/threads.py)


@contextmanager
def one_thread(needed: bool = True) -> Iterator[None]:
    """Let PyTorch compute with one thread on the CPU if `needed` is True; restore the number of threads on exit."""
    before = torch.get_num_threads()
    if not needed or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
