"""The recorder of a run on several ranks. The first rank reads and writes; all ranks resume from the same state."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from pactune.parallel import Ranks
from pactune.tracking.recorder import CheckpointSchedule, Histories, Recorder, State
from pactune.tracking.states import decode, encode
from pactune.trees import Params

__all__ = ["RankRecorder"]


class RankRecorder(Recorder):
    """Sends the state that the first rank loads to all ranks, so that only the first rank needs the folder.

    Args:
        own: a `FolderRecorder` on the first rank, a `Recorder` on the others.
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
        """Return the saved state to resume from, on this rank's device; None for a new run."""
        tensors: Params = {}
        text = json.dumps(encode(self._own.load(device), tensors), allow_nan=False)
        text, tensors = self._ranks.object_from_leader((text, tensors))
        state: State | None = decode(json.loads(text), tensors, device)
        return state

    def save(self, step: int, state: Callable[[], State], histories: Histories, *, last: bool = False) -> None:
        """Save the state. All ranks must call this, since `state()` gathers the chains from all ranks."""
        present = state()
        self._own.save(step, lambda: present, histories, last=last)

    def end(self, **fields: Any) -> None:
        """Save how the run ended."""
        self._own.end(**fields)

    def part(self, name: str, schedule: CheckpointSchedule | None = None, **settings: Any) -> Recorder:
        """Return the recorder of a sub-run."""
        return RankRecorder(self._own.part(name, schedule, **settings), self._ranks)

    def newest_step(self) -> int | None:
        """Return the outer step from which the run would resume, on the first rank."""
        return self._own.newest_step()

    def start_by(self, step: int) -> None:
        """Resume from the newest checkpoint that is not after this outer step, if there is one."""
        self._own.start_by(step)
