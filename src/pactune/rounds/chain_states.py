"""The states of the chains of one run, from round to round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pactune.hypergradient.records import EstimatorInputs, InnerState, StepData
from pactune.parallel import SINGLE_RANK, Ranks
from pactune.problem.data import Batch
from pactune.rounds.inputs import RunInputs
from pactune.rounds.plan import OnStep, RoundOutcome, RoundPlan, RoundRequest
from pactune.streams import Streams
from pactune.trees import Params

__all__ = ["ChainStates", "Starts"]

Starts = tuple[list[InnerState], list[Params] | None]


@dataclass
class ChainStates:
    """The states of the chains of a run.

    Attributes:
        inputs: mini-batches, noise and draws from P_0.
        chains: C.
        restart: True if every round draws a new θ_0.
        params: the start of a single chain that is not drawn: the model's parameters.
        buffers: the model's buffers at the start.
        states: the states of this rank's chains; None before the first round.
        rounds: the number of finished rounds.
        ranks: the ranks of the run. Each rank has the states of its own chains.
        lead: the state of the first chain that users see, without its slots. Every rank has it.
        memory: the tensors that the estimators of this rank's chains keep for the next round; None if they keep none.
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
    memory: list[Params] | None = None

    def request(
        self, plan: RoundPlan, hyper: Params, on_step: OnStep | None = None, starts: Starts | None = None
    ) -> RoundRequest:
        """Return the request for the next round.

        Args:
            plan: the settings of the round.
            hyper: λ.
            on_step: moves λ inside the round.
            starts: the result of `starts`, if it is known already.
        """
        states, drawn = starts or self.starts(hyper)
        first = self.rounds * plan.inner_steps
        stride = plan.path_stride
        phase = Streams(0).key("stride", self.rounds) % stride if stride > 1 else 0  # no seed: runs share the phase
        mine = self.ranks.own_chains(self.chains)

        def step_data_at(t: int) -> list[StepData]:
            return self.inputs.step_data(first + t, self.chains, mine)

        batches = self.inputs.risk_batches(plan.trajectory.risk_sample, self.rounds)
        inputs = partial(self.estimator_inputs, batches)
        return RoundRequest(plan, states, hyper, step_data_at, batches, drawn, on_step, phase, first, inputs)

    def estimator_inputs(self, risk_batches: Iterable[Batch]) -> list[EstimatorInputs]:
        """Return the inputs of the estimators of this rank's chains in the next round."""
        own = self.ranks.own_chains(self.chains)
        memory = self.memory if self.memory is not None else [Params() for _ in own]
        return [
            self.inputs.for_estimator(self.rounds, chain, kept, risk_batches)
            for chain, kept in zip(own, memory, strict=True)
        ]

    def after(self, outcome: RoundOutcome) -> ChainStates:
        """Return the chains at the end of a round; these chains stay at its start until `follow`."""
        lead = self.ranks.from_leader(self.inputs.presented(outcome.states[0]))
        memory = list(outcome.memory) if any(outcome.memory) else self.memory
        return replace(self, states=outcome.states, lead=lead, rounds=self.rounds + 1, memory=memory)

    def follow(self, other: ChainStates) -> None:
        """Continue from the states of `other`."""
        self.states, self.lead, self.rounds, self.memory = other.states, other.lead, other.rounds, other.memory

    def state(self) -> dict[str, Any]:
        """Return the states for a checkpoint. Randomness needs no state.

        The first rank returns the chains of all ranks; the other ranks send theirs.
        """
        states = None if self.states is None else self.ranks.gather(self.states, self.chains)
        chains = None if states is None else [state._asdict() for state in states]
        if chains is not None and self.memory is not None:
            gathered = self.ranks.gather(self.memory, self.chains)
            chains = [{**chain, "memory": kept} for chain, kept in zip(chains, gathered, strict=True)]
        return {"params": self.params, "buffers": self.buffers, "chains": chains, "rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the states from a checkpoint."""
        self.params, self.buffers, self.rounds = state["params"], state["buffers"], state["rounds"]
        found = state["chains"] or []
        chains = [InnerState(**{name: chain[name] for name in InnerState._fields}) for chain in found]
        own = self.ranks.own_chains(self.chains)
        self.states = [chains[number] for number in own] if chains else None
        self.lead = self.inputs.presented(chains[0]) if chains else None
        remembered = bool(chains) and all("memory" in chain for chain in found)
        self.memory = [found[number]["memory"] for number in own] if remembered else None

    @property
    def starts_anew(self) -> bool:
        """True if the next round starts from θ_0."""
        return self.states is None or self.restart

    def starts(self, hyper: Params) -> Starts:
        """Return the states at the start of the next round, and the draws from P_0 if the chains start from θ_0."""
        if self.states is not None and not self.starts_anew:
            return self.states, None
        drawn = [self._draw(chain) for chain in self.ranks.own_chains(self.chains)]
        problem = self.inputs.problem
        starts = [problem.initial(params, hyper) for params in drawn] if problem.has_initial else drawn
        return [self.inputs.begin(params, self.buffers) for params in starts], drawn

    def _draw(self, chain: int) -> Params:
        own = self.chains == 1 and not self.restart and self.inputs.initial is None
        if own or not self.inputs.problem.draws_initial:  # without a draw, θ_0 depends on λ alone
            return self.params
        return self.inputs.draw(self.rounds, chain)
