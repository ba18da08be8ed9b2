"""The chains of one run and their states between rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pactune.hypergradient.records import InnerState, StepData
from pactune.parallel import SINGLE_RANK, Ranks
from pactune.rounds.inputs import RunInputs
from pactune.rounds.plan import OnStep, RoundOutcome, RoundPlan, RoundRequest
from pactune.streams import Streams
from pactune.trees import Params

__all__ = ["ChainStates"]


@dataclass
class ChainStates:
    """Where the chains of a run are.

    Attributes:
        inputs: mini-batches, noise and draws from P_0.
        chains: C.
        restart: whether every round draws θ_0 anew.
        params: where a single chain starts that is not drawn.
        buffers: the model's buffers at the start.
        states: the chains, None before the first round.
        rounds: how many rounds are done.
        ranks: the ranks of the run; each has the states of its own chains.
        lead: the first chain, which every rank has, without what its dynamics remembers.
    """

    inputs: RunInputs
    chains: int
    restart: bool
    params: Params
    buffers: Params
    states: list[InnerState] | None = None
    rounds: int = 0
    ranks: Ranks = SINGLE_RANK
    lead: InnerState | None = None

    def request(self, plan: RoundPlan, hyper: Params, on_step: OnStep | None = None) -> RoundRequest:
        """Return the next round."""
        states, drawn = self.starts(hyper)
        first = self.rounds * plan.inner_steps
        phase = Streams(0).key("stride", self.rounds) % plan.path_stride  # of no seed, so that many runs share it
        mine = self.ranks.mine(self.chains)

        def step_data(t: int) -> list[StepData]:
            return self.inputs.step_data(first + t, self.chains, mine)

        return RoundRequest(plan, states, hyper, step_data, drawn, on_step, phase, first)

    def after(self, outcome: RoundOutcome) -> ChainStates:
        """Return the chains at the end of a round; these chains stay at its start until `follow`."""
        lead = self.ranks.from_leader(outcome.states[0]._replace(slots={}))
        return replace(self, states=outcome.states, lead=lead, rounds=self.rounds + 1)

    def follow(self, other: ChainStates) -> None:
        """Go on from the states of `other`."""
        self.states, self.lead, self.rounds = other.states, other.lead, other.rounds

    def state(self) -> dict[str, Any]:
        """Return where the chains are, as a checkpoint holds it; randomness needs no state.

        The first rank returns the chains of all ranks, which send them.
        """
        states = None if self.states is None else self.ranks.gather(self.states, self.chains)
        chains = None if states is None else [state._asdict() for state in states]
        return {"params": self.params, "buffers": self.buffers, "chains": chains, "rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go where the chains were."""
        self.params, self.buffers, self.rounds = state["params"], state["buffers"], state["rounds"]
        chains = None if state["chains"] is None else [InnerState(**chain) for chain in state["chains"]]
        self.states = None if chains is None else [chains[number] for number in self.ranks.mine(self.chains)]
        self.lead = None if chains is None else chains[0]

    def starts(self, hyper: Params) -> tuple[list[InnerState], list[Params] | None]:
        """Return the states at θ_0 of the next round, and the draws from P_0 if the chains start anew."""
        if self.states is not None and not self.restart:
            return self.states, None
        drawn = [self._draw(chain) for chain in self.ranks.mine(self.chains)]
        problem = self.inputs.problem
        starts = [problem.initial(params, hyper) for params in drawn] if problem.has_initial else drawn
        return [self.inputs.begin(params, self.buffers) for params in starts], drawn

    def _draw(self, chain: int) -> Params:
        own = self.chains == 1 and not self.restart and self.inputs.initial is None
        return self.params if own else self.inputs.draw(self.rounds, chain)
