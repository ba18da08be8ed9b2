"""A lane: the chains of one run, moving from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pactune.engine.base import Engine
from pactune.engine.eager import Eager
from pactune.engine.plan import Job, OnStep, Outcome, Plan
from pactune.engine.runner import Runner
from pactune.engine.world import World
from pactune.hypergradient.trajectory import InnerState, Tick
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
    """

    world: World
    chains: int
    restart: bool
    params: Params
    buffers: Params
    states: list[InnerState] | None = None
    rounds: int = 0

    def run(self, plan: Plan, hyper: Params, on_step: OnStep | None = None, engine: Engine | None = None) -> Outcome:
        """Run one round; a round that is interrupted leaves the lane as it was."""
        (outcome,) = Runner(engine or Eager()).run([self.job(plan, hyper, on_step)])
        self.take(outcome)
        return outcome

    def job(self, plan: Plan, hyper: Params, on_step: OnStep | None = None) -> Job:
        """Return the next round."""
        states, drawn = self._starts(hyper)
        first = self.rounds * plan.inner_steps
        phase = Streams(0).key("stride", self.rounds) % plan.path_stride  # of no seed, so that many runs share it

        def ticks(t: int) -> list[Tick]:
            return self.world.ticks(first + t, self.chains)

        return Job(plan, states, hyper, ticks, drawn, on_step, phase)

    def take(self, outcome: Outcome) -> None:
        """Go where a round has led."""
        self.states, self.rounds = outcome.states, self.rounds + 1

    def state(self) -> dict[str, Any]:
        """Return where the chains are, as a checkpoint holds it; randomness needs no state."""
        chains = None if self.states is None else [state._asdict() for state in self.states]
        return {"params": self.params, "buffers": self.buffers, "chains": chains, "rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go where the chains were."""
        self.params, self.buffers, self.rounds = state["params"], state["buffers"], state["rounds"]
        self.states = None if state["chains"] is None else [InnerState(**chain) for chain in state["chains"]]

    def _starts(self, hyper: Params) -> tuple[list[InnerState], list[Params] | None]:
        if self.states is not None and not self.restart:
            return self.states, None
        drawn = [self._draw(chain) for chain in range(self.chains)]
        problem = self.world.problem
        starts = [problem.initial(params, hyper) for params in drawn] if problem.has_initial else drawn
        return [self.world.begin(params, self.buffers) for params in starts], drawn

    def _draw(self, chain: int) -> Params:
        own = self.chains == 1 and not self.restart and self.world.initial is None
        return self.params if own else self.world.draw(self.rounds, chain)
