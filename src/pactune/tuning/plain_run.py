"""Plain training beside a tuned run, and what both runs keep and report of an outer step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pactune.columns import Row
from pactune.errors import warn_user
from pactune.interrupts import immediate_interrupts
from pactune.objectives import ValidationRisk
from pactune.problem.data import Source
from pactune.results.verdict import diverged_at
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.plan import RoundPlan
from pactune.stacking.lockstep import RequestGenerator
from pactune.stacking.requests import EvaluationRequest
from pactune.trees import Params, clone
from pactune.tuning.fit_settings import FitSettings

if TYPE_CHECKING:
    from pactune.tuning.tuner import Tuner

__all__ = ["Kept", "PlainRun", "PlainStep", "evaluations"]

PLAIN = ValidationRisk()


class Kept(NamedTuple):
    """A finished outer step: θ, buffers and the λ it was trained with."""

    step: int
    params: Params
    buffers: Params
    hyper: Params

    @classmethod
    def of(cls, step: int, lane: ChainStates, hyper: Params) -> Kept:
        """Return the first chain of a lane."""
        assert lane.lead is not None
        return cls(step, clone(lane.lead.params), clone(lane.lead.buffers), hyper)


class PlainStep(NamedTuple):
    """An outer step of the plain run: where its chains are, and its row."""

    lane: ChainStates
    row: Row


class PlainRun:
    """Plain training beside the tuned run: the same start, data and noise, λ fixed where it started.

    It ends where it diverges, with a warning.
    """

    def __init__(self, tuner: Tuner, settings: FitSettings, test: Source | None) -> None:
        default = 1 if tuner.restart else settings.outer_steps
        self._steps = settings.plain_steps if settings.plain_steps is not None else default
        self._tuner, self._settings, self._test = tuner, settings, test
        self._lane = tuner.plain_chains
        self._plan = _without_path(tuner.plan(0.0))
        self.rows: list[Row] = []
        self.kept: Kept | None = None

    def step(self, tuned: ChainStates) -> RequestGenerator[PlainStep | None]:
        """Make one more outer step, unless there were enough; the first round of an offline run is shared."""
        tuner, problem, start = self._tuner, self._tuner.problem, self._tuner.start_hyper
        if len(self.rows) >= self._steps or diverged_at(self.rows[-1:]) is not None:
            return None
        if tuned.rounds == 1 and not tuner.online:
            lane = replace(self._lane, states=tuned.states, lead=tuned.lead, rounds=tuned.rounds)
        else:
            lane = self._lane.after((yield self._lane.request(self._plan, start)))
        present = clone(problem.hyperparameters())
        problem.load_hyper(start)
        row: Row = {"outer_step": lane.rounds}
        try:
            tuner.publish(lane)
            measured = (yield from evaluations(tuner, self._test)) if self._settings.evaluate else {}
            row |= tuner.ranks.numbers_from_leader(measured)
            with immediate_interrupts():
                for listener in self._settings.callbacks:
                    listener.on_plain_step(tuner, row)
        finally:
            problem.load_hyper(present)
        return PlainStep(lane, row)

    def take(self, step: PlainStep | None) -> None:
        """Go where an outer step has led."""
        if step is None:
            return
        self._lane.follow(step.lane)
        self.rows.append(step.row)
        if diverged_at(self.rows[-1:]) is not None:
            warn_user(
                f"plain training, with λ fixed where it started, diverged in outer step {self._lane.rounds}; "
                "there is nothing to compare the tuned run with"
            )
        choice = self._settings.choice
        if choice is None or self._lane.rounds <= choice.step:
            self.kept = Kept.of(self._lane.rounds, self._lane, self._tuner.start_hyper)


def _without_path(plan: RoundPlan) -> RoundPlan:
    return replace(plan, trajectory=replace(plan.trajectory, objective=PLAIN), derivatives=False)


def evaluations(tuner: Tuner, test: Source | None) -> RequestGenerator[Row]:
    """Ask for the evaluation of the user's model on every data set, in `eval()` mode, and for ‖θ‖."""
    problem = tuner.problem
    sources = {"train": problem.train, "valid": problem.valid, **({} if test is None else {"test": test})}
    columns: Row = yield EvaluationRequest(problem, sources)
    return columns
