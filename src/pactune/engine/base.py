"""What an engine is: a way to run the first steps of a round, those that no estimator has to see one by one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pactune.engine.chain import Chain
from pactune.hypergradient.records import Tick

__all__ = ["ORDERED", "Engine", "Track", "log"]

ORDERED = "a DataLoader with a sampler of its own is read once and in order"

log = logging.getLogger("pactune.engine")


class Track(NamedTuple):
    """A chain of a round, and what it meets at step t."""

    chain: Chain
    ticks: Callable[[int], Tick]


class Engine(ABC):
    """How inner steps are run. An engine keeps what it has recorded from round to round."""

    @abstractmethod
    def run_ahead(self, tracks: Sequence[Track], steps: int) -> int:
        """Run up to `steps` first steps of every chain; return how many were run. The rest is run one by one."""
