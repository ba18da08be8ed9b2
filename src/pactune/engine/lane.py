"""A lane: the chains of one run, moving from round to round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pactune.engine.plan import Job, OnStep, Outcome, Plan
from pactune.engine.world import World
from pactune.hypergradient.records import InnerState, Tick
from pactune.parallel import ALONE, Team
from pactune.streams import Streams
from pactune.trees import Params

__all__ = ["Lane"]


@dataclass
class Lane:
    """Where the chains of a run are.

    Attributes:
        world: mini-batches, noise and draws from P_0.
        chains: C.
        restart: whether every round draws θ_0 anew.
        params: where a single chain starts that is not drawn.
        buffers: the model's buffers at the start.
        states: the chains, None before the first round.
        rounds: how many rounds are done.
        team: the ranks of the run; each has the states of its own chains.
        lead: the first chain, which every rank has, without what its dynamics remembers.
    """

    world: World
    chains: int
    restart: bool
    params: Params
    buffers: Params
    states: list[InnerState] | None = None
    rounds: int = 0
    team: Team = ALONE
    lead: InnerState | None = None

    def job(self, plan: Plan, hyper: Params, on_step: OnStep | None = None) -> Job:
        """Return the next round."""
        states, drawn = self._starts(hyper)
        first = self.rounds * plan.inner_steps
        phase = Streams(0).key("stride", self.rounds) % plan.path_stride  # of no seed, so that many runs share it
        mine = self.team.mine(self.chains)

        def ticks(t: int) -> list[Tick]:
            return self.world.ticks(first + t, self.chains, mine)

        return Job(plan, states, hyper, ticks, drawn, on_step, phase, first)

    def after(self, outcome: Outcome) -> Lane:
        """Return where a round leads; this lane stays where it is until it follows."""
        lead = self.team.from_leader(outcome.states[0]._replace(slots={}))
        return replace(self, states=outcome.states, lead=lead, rounds=self.rounds + 1)

    def follow(self, other: Lane) -> None:
        """Go where another lane is."""
        self.states, self.lead, self.rounds = other.states, other.lead, other.rounds

    def state(self) -> dict[str, Any]:
        """Return where the chains are, as a checkpoint holds it; randomness needs no state.

        The first rank returns the chains of all ranks, which send them.
        """
        states = None if self.states is None else self.team.gather(self.states, self.chains)
        chains = None if states is None else [state._asdict() for state in states]
        return {"params": self.params, "buffers": self.buffers, "chains": chains, "rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go where the chains were."""
        self.params, self.buffers, self.rounds = state["params"], state["buffers"], state["rounds"]
        chains = None if state["chains"] is None else [InnerState(**chain) for chain in state["chains"]]
        self.states = None if chains is None else [chains[number] for number in self.team.mine(self.chains)]
        self.lead = None if chains is None else chains[0]

    def _starts(self, hyper: Params) -> tuple[list[InnerState], list[Params] | None]:
        if self.states is not None and not self.restart:
            return self.states, None
        drawn = [self._draw(chain) for chain in self.team.mine(self.chains)]
        problem = self.world.problem
        starts = [problem.initial(params, hyper) for params in drawn] if problem.has_initial else drawn
        return [self.world.begin(params, self.buffers) for params in starts], drawn

    def _draw(self, chain: int) -> Params:
        own = self.chains == 1 and not self.restart and self.world.initial is None
        return self.params if own else self.world.draw(self.rounds, chain)
