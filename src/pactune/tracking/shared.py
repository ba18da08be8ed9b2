"""The recorder of a run on several ranks: the first one reads and writes, and all go on from the same state."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from pactune.parallel import Ranks
from pactune.tracking.recorder import Recorder, State
from pactune.tracking.states import decode, encode
from pactune.trees import Params

__all__ = ["SharedRecorder"]


class SharedRecorder(Recorder):
    """Hands what `own` remembers on the first rank to all ranks, so that no other needs to see the folder.

    Args:
        own: a recorder of a folder on the first rank, one that remembers nothing elsewhere.
        ranks: the ranks.
    """

    def __init__(self, own: Recorder, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks

    def __enter__(self) -> Recorder:
        self._own.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.__exit__(kind, error, trace)

    def load(self, device: torch.device) -> State | None:
        """Return the state to go on from, on this rank's device; None for a new run."""
        tensors: Params = {}
        text = json.dumps(encode(self._own.load(device), tensors), allow_nan=False)
        text, tensors = self._ranks.object_from_leader((text, tensors))
        state: State | None = decode(json.loads(text), tensors, device)
        return state

    def save(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Remember the state; making it gathers the chains, so all ranks take part."""
        present = state()
        self._own.save(lambda: present, last=last)

    def end(self, **fields: Any) -> None:
        """Remember how the run ended."""
        self._own.end(**fields)

    def part(self, name: str) -> Recorder:
        """Return a recorder for a run that is a part of this one."""
        return SharedRecorder(self._own.part(name), self._ranks)
