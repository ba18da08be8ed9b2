"""The interface of an engine. It runs the first steps of a round, which no estimator needs, and the end of a round."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

from pactune.hypergradient.records import StepData
from pactune.problem import Problem
from pactune.problem.data import Batch
from pactune.problem.inner_problem import InnerProblem
from pactune.rounds.chain import Carry, Chain, ChainEnd
from pactune.rounds.online import OnlineStep, root_gradients
from pactune.trees import Params, clone

__all__ = ["CHANGED", "ORDERED", "Engine", "RoundChain", "log"]

ORDERED = "a DataLoader with a sampler of its own is read once and in order"

log = logging.getLogger("pactune.engines")
CHANGED = "a loss or a model depends on something that has changed or that it changes itself"


class RoundChain(NamedTuple):
    """A chain of a round with its data.

    Attributes:
        chain: the chain.
        step_data_at: returns the chain's data at step t of the round.
        risk_batches: the rows on which the risk at θ_T is computed.
        position: the number of inner steps of the run before this round.
        online: moves λ after every measured step of this chain, in the online algorithm; otherwise None.
    """

    chain: Chain
    step_data_at: Callable[[int], StepData]
    risk_batches: Iterable[Batch]
    position: int = 0
    online: OnlineStep | None = None

    def step(self, t: int) -> None:
        """Run step t of the round eagerly."""
        if self.online is None:
            self.chain.step(self.step_data_at(t), self.chain.hyper)
            return
        measured = self.chain.step(self.step_data_at(t), clone(self.chain.hyper))
        if self.chain.measures(t):
            (gradient,) = root_gradients(self.chain.plan.path_stride, [measured], self.chain.hyper)
            self.online(gradient)

    @property
    def carry(self) -> Carry:
        """The chain's state and sums, and λ with its optimizer's tensors if steps move it."""
        return self.chain.carry._replace(online=None if self.online is None else self.online.state())

    @property
    def hyper(self) -> Params:
        """λ if it stays the same in all steps; otherwise it is in the carry, and this is empty."""
        return self.chain.hyper if self.online is None else {}

    def continue_from(self, carry: Carry, steps: int) -> None:
        """Continue from `carry`, after an engine has run `steps` steps."""
        if self.online is not None and carry.online is not None and steps:
            done = self.chain.length
            self.online.load(carry.online, sum(map(self.chain.measures, range(done, done + steps))))
        self.chain.continue_from(carry._replace(online=None), steps)


@dataclass
class Engine(ABC):
    """A way to run inner steps. An engine keeps its recordings from round to round.

    Attributes:
        unrecordable: problems whose losses or models changed after their steps were recorded. Their steps are run one
            by one from then on.
    """

    unrecordable: WeakSet[Problem] = field(default_factory=WeakSet, init=False, repr=False, compare=False)

    @abstractmethod
    def run_first_steps(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Run up to `steps` first steps of every chain; return how many were run. The chains run the rest."""

    def run_ends(self, round_chains: Sequence[RoundChain], first: int) -> list[ChainEnd | None]:
        """Run the steps from `first` on, which estimators follow step by step, and the risk at θ_T with its gradient.

        Args:
            round_chains: chains that stand at step `first` of their rounds. The engine leaves them as they are.
            first: 0, or the number of first steps of the rounds that no estimator needs.

        Returns:
            The end of every chain; None for a chain that has to run the steps itself.
        """
        return [None] * len(round_chains)

    @property
    def fuses_steps(self) -> bool:
        """True if the engine compiles both gradients of a step together."""
        return False

    def mark_unrecordable(self, *problems: InnerProblem, reason: str = CHANGED) -> None:
        """Run the steps of some problems one by one from now on, and say why."""
        members = {member for problem in problems for member in problem.members}
        if not self.unrecordable.issuperset(members):
            log.warning("steps are run one by one from now on: %s", reason)
        self.unrecordable.update(members)
