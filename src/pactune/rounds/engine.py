"""What an engine is: a way to run the first steps of a round, those that no estimator has to see one by one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

from pactune.hypergradient.records import StepData
from pactune.problem import Problem
from pactune.problem.inner_problem import InnerProblem
from pactune.rounds.chain import Chain

__all__ = ["ORDERED", "Engine", "RoundChain", "log"]

ORDERED = "a DataLoader with a sampler of its own is read once and in order"

log = logging.getLogger("pactune.engines")


class RoundChain(NamedTuple):
    """A chain of a round.

    Attributes:
        chain: the chain.
        step_data: returns what the chain meets at step t of the round.
        position: how many inner steps of the run lie before the round.
    """

    chain: Chain
    step_data: Callable[[int], StepData]
    position: int = 0


@dataclass
class Engine(ABC):
    """How inner steps are run. An engine keeps what it has recorded from round to round.

    Attributes:
        stateful: problems whose losses or models depend on something that changed while they were recorded. Their
            steps are run one by one from then on.
    """

    stateful: WeakSet[Problem] = field(default_factory=WeakSet, init=False, repr=False, compare=False)

    @abstractmethod
    def run_ahead(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Run up to `steps` first steps of every chain; return how many were run. The rest is run one by one."""

    def mark_stateful(self, problem: InnerProblem) -> None:
        """Run the steps of a problem one by one from now on."""
        if not self.stateful.issuperset(problem.members):
            log.warning(
                "steps are run one by one from now on: a loss or a model depends on something that has changed or that "
                "it changes itself"
            )
        self.stateful.update(problem.members)
