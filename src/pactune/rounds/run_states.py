"""The chains of all problems of a run: one problem, or folds or tasks that share λ, and the refit beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pactune.hypergradient.records import InnerState
from pactune.problem import Problem
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.plan import OnStep, RoundOutcome, RoundPlan, RoundRequest
from pactune.trees import Params

__all__ = ["RunStates"]


@dataclass
class RunStates:
    """The states of the chains of a run, by problem.

    Attributes:
        problem: the problem of the run.
        parts: the chains of every subproblem, whose objectives have the mean J.
        whole: the chains of the refit, which trains on all rows and adds nothing to J; None without a refit.
    """

    problem: Problem
    parts: list[ChainStates]
    whole: ChainStates | None = None

    _plans: tuple[RoundPlan, list[RoundPlan], RoundPlan] | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, problem: Problem, chains: ChainStates) -> RunStates:
        """Return the chains of every subproblem, all like `chains`."""

        def on(part: Problem) -> ChainStates:
            return replace(chains, inputs=replace(chains.inputs, problem=part))

        return cls(problem, [on(part) for part in problem.subproblems], on(problem) if problem.refit else None)

    def read_by(self, reader: str) -> RunStates:
        """Return the same chains with a reading position of their own in sources that are read in order."""

        def read(one: ChainStates) -> ChainStates:
            return replace(one, inputs=replace(one.inputs, reader=reader))

        return self._each(read)

    @property
    def rounds(self) -> int:
        """The number of finished rounds."""
        return self.parts[0].rounds

    @property
    def chosen(self) -> ChainStates:
        """The chains whose model is the result: those of the refit, or those of the first subproblem."""
        return self.parts[0] if self.whole is None else self.whole

    @property
    def place(self) -> ChainStates | InnerState:
        """The parameters and buffers of the result: where its first chain stands, or where it will start."""
        return self.chosen.lead or self.chosen

    def requests(self, plan: RoundPlan, hyper: Params, on_step: OnStep | None = None) -> list[RoundRequest]:
        """Return the requests for the next round: one per subproblem, then that of the refit."""
        self.problem.load_tasks(self.rounds, self.parts[0].inputs.streams)
        first = self.parts[0]
        starts = first.starts(hyper) if first.starts_anew else None  # θ_0 is a function of the seed: equal in all parts
        if self._plans is None or self._plans[0] is not plan:
            whole = plan.on(self.problem).training_only()
            self._plans = plan, [plan.on(one.inputs.problem) for one in self.parts], whole
        _, plans, whole = self._plans
        found = [one.request(own, hyper, on_step, starts) for one, own in zip(self.parts, plans, strict=True)]
        if self.whole is not None:
            found.append(self.whole.request(whole, hyper, starts=starts))
        return found

    def after(self, outcomes: Sequence[RoundOutcome]) -> RunStates:
        """Return the chains at the end of a round; these chains stay at its start until `follow`."""
        found = iter(outcomes)
        return self._each(lambda one: one.after(next(found)))

    def counted(self, rounds: int) -> RunStates:
        """Return the same chains with `rounds` more finished rounds; with −1 the next round reads its data again."""
        return self._each(lambda one: replace(one, rounds=one.rounds + rounds))

    def like(self, other: RunStates) -> RunStates:
        """Return these chains at the states of `other`."""
        pairs = iter(other.all())

        def moved(one: ChainStates) -> ChainStates:
            there = next(pairs)
            return replace(one, states=there.states, lead=there.lead, rounds=there.rounds)

        return self._each(moved)

    def follow(self, other: RunStates) -> None:
        """Continue from the states of `other`."""
        for one, there in zip(self.all(), other.all(), strict=True):
            one.follow(there)

    def state(self) -> list[dict[str, Any]]:
        """Return the states for a checkpoint."""
        return [one.state() for one in self.all()]

    def load_state(self, states: list[dict[str, Any]]) -> None:
        """Restore the states from a checkpoint."""
        for one, state in zip(self.all(), states, strict=True):
            one.load_state(state)

    def all(self) -> list[ChainStates]:
        """Return the chains of the subproblems, then those of the refit."""
        return [*self.parts, *([] if self.whole is None else [self.whole])]

    def _each(self, function: Callable[[ChainStates], ChainStates]) -> RunStates:
        parts = [function(one) for one in self.parts]
        return RunStates(self.problem, parts, None if self.whole is None else function(self.whole))
