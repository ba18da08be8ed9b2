"""Plain training beside a tuned run, and the parts of an outer step that both runs have."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pactune.columns import Row
from pactune.errors import warn_user
from pactune.objectives import ValidationRisk
from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.results.verdict import diverged_at
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.plan import RoundPlan
from pactune.stacking.lockstep import RequestGenerator
from pactune.stacking.requests import EvaluationRequest
from pactune.trees import Params, clone
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun

__all__ = ["KeptStep", "PlainRun", "PlainStep", "evaluations"]

WITHOUT_PATH = ValidationRisk()


class KeptStep(NamedTuple):
    """A finished outer step: θ, the buffers, and the λ that trained them."""

    step: int
    params: Params
    buffers: Params
    hyper: Params

    @classmethod
    def of(cls, chains: ChainStates, hyper: Params) -> KeptStep:
        """Return the last step of the first chain."""
        assert chains.lead is not None
        return cls(chains.rounds, clone(chains.lead.params), clone(chains.lead.buffers), hyper)


class PlainStep(NamedTuple):
    """An outer step of plain training: its chains at θ_T, and its row."""

    chains: ChainStates
    row: Row


class PlainRun:
    """Plain training: the start, the data and the noise of the tuned run, with λ fixed at its start.

    Plain training ends when it diverges, with a warning.

    Args:
        run: the tuned run.
        settings: the arguments of `fit`.
        test: the test set.
        listeners: they hear every outer step.
    """

    def __init__(self, run: OuterRun, settings: FitSettings, test: Source | None, listeners: Listeners) -> None:
        default = 1 if run.settings.restart else settings.outer_steps
        self._steps = settings.plain_steps if settings.plain_steps is not None else default
        self._run, self._settings, self._test, self._listeners = run, settings, test, listeners
        self._chains = run.plain_chains
        self._plan = _without_path(run.plan(0.0))
        self.rows: list[Row] = []
        self.kept: KeptStep | None = None

    def step(self, tuned: ChainStates) -> RequestGenerator[PlainStep | None]:
        """Run one more outer step; return None after the last. The first round of an offline run serves both runs."""
        run, problem = self._run, self._run.problem
        if len(self.rows) >= self._steps or diverged_at(self.rows[-1:]) is not None:
            return None
        if tuned.rounds == 1 and not run.settings.online:
            arrived = replace(self._chains, states=tuned.states, lead=tuned.lead, rounds=tuned.rounds)
        else:
            arrived = self._chains.after((yield self._chains.request(self._plan, run.start_hyper)))
        present = clone(problem.hyperparameters())
        problem.load_hyper(run.start_hyper)
        row: Row = {"outer_step": arrived.rounds}
        try:
            run.publish(arrived)
            measured = (yield from evaluations(problem, self._test)) if self._settings.evaluate else {}
            row |= run.ranks.numbers_from_leader(measured)
            self._listeners.plain_step(row)
        finally:
            problem.load_hyper(present)
        return PlainStep(arrived, row)

    def accept(self, step: PlainStep | None) -> None:
        """Go on from the end of an outer step."""
        if step is None:
            return
        self._chains.follow(step.chains)
        self.rows.append(step.row)
        if diverged_at(self.rows[-1:]) is not None:
            warn_user(
                f"plain training, with λ fixed where it started, diverged in outer step {self._chains.rounds}; "
                "there is nothing to compare the tuned run with"
            )
        choice = self._settings.choice
        if choice is None or self._chains.rounds <= choice.step:
            self.kept = KeptStep.of(self._chains, self._run.start_hyper)

    def load_state(self, rows: list[Row], kept: KeptStep | None) -> None:
        """Go on after `rows`."""
        self.rows, self.kept = rows, kept


def _without_path(plan: RoundPlan) -> RoundPlan:
    return replace(plan, trajectory=replace(plan.trajectory, objective=WITHOUT_PATH), derivatives=False)


def evaluations(problem: Problem, test: Source | None) -> RequestGenerator[Row]:
    """Request ‖θ‖ and the evaluation of the user's model, in `eval()` mode, on every data set."""
    sources = {"train": problem.train, "valid": problem.valid, **({} if test is None else {"test": test})}
    columns: Row = yield EvaluationRequest(problem, sources)
    return columns
