"""Plain training beside a tuned run, and the parts of an outer step that both runs have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pactune.columns import History, Row
from pactune.errors import warn_user
from pactune.problem.data import Source
from pactune.results.verdict import diverged_at
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.run_states import RunStates
from pactune.stacking.lockstep import RequestGenerator
from pactune.stacking.requests import EvaluationRequest
from pactune.trees import Params, clone
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun

__all__ = ["KeptStep", "PlainRun", "PlainStep", "evaluations"]


class KeptStep(NamedTuple):
    """A finished outer step: θ, the buffers, and the λ that trained them.

    Attributes:
        folds: the parameters and buffers of the model of every fold; empty without folds.
    """

    step: int
    params: Params
    buffers: Params
    hyper: Params
    folds: list[tuple[Params, Params]]

    @classmethod
    def of(cls, chains: RunStates, hyper: Params) -> KeptStep:
        """Return the last step of the first chain."""
        folds = chains.parts if chains.problem.has_folds else []
        return cls(chains.rounds, *_model(chains.chosen), hyper, [_model(fold) for fold in folds])


def _model(chains: ChainStates) -> tuple[Params, Params]:
    """Return copies of the parameters and buffers of the first chain."""
    assert chains.lead is not None
    return clone(chains.lead.params), clone(chains.lead.buffers)


class PlainStep(NamedTuple):
    """An outer step of plain training: its chains at θ_T, and its row."""

    chains: RunStates
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
        self._plan = run.plan(0.0).training_only()
        self.rows, self.done = History(), 0
        self.kept: KeptStep | None = None

    def step(self, tuned: RunStates, *, last: bool) -> RequestGenerator[PlainStep | None]:
        """Run one more outer step; return None after the last. The first round of an offline run serves both runs.

        Args:
            tuned: the chains of the tuned run after the same outer step.
            last: True if this is the last outer step of the tuned run.
        """
        run, problem = self._run, self._run.problem
        if self.done >= self._steps or diverged_at(self.rows[-1:]) is not None:
            return None
        if tuned.rounds == 1 and not run.settings.online:
            arrived = self._chains.like(tuned)
        elif run.settings.roll_back:
            arrived = (yield from run.train_again(self._chains, self._plan, run.start_hyper)).counted(1)
        else:
            arrived = self._chains.after((yield self._chains.requests(self._plan, run.start_hyper)))
        present = clone(problem.hyperparameters())
        problem.load_hyper(run.start_hyper)
        row: Row = {"outer_step": arrived.rounds}
        try:
            run.publish(arrived)
            if self._settings.evaluates(arrived.rounds, last=last or self.done + 1 >= self._steps):
                measured = yield from evaluations(arrived, run.start_hyper, self._test)
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
        self.done += 1
        if diverged_at(self.rows[-1:]) is not None:
            warn_user(
                f"plain training, with λ fixed where it started, diverged in outer step {self._chains.rounds}; "
                "there is nothing to compare the tuned run with"
            )
        choice = self._settings.choice
        if choice is None or self._chains.rounds <= choice.step:
            self.kept = KeptStep.of(self._chains, self._run.start_hyper)

    def load_state(self, done: int, rows: Iterable[Row], kept: KeptStep | None) -> None:
        """Go on after `done` outer steps, whose rows are `rows`."""
        self.done, self.rows, self.kept = done, History(rows), kept


def evaluations(chains: RunStates, hyper: Params, test: Source | None) -> RequestGenerator[Row]:
    """Request ‖θ‖ and the evaluation of the models, in `eval()` mode, on every data set.

    The columns of the validation rows are means over the subproblems. So are those of the training rows, unless a refit
    trains on all rows; then they are the refit's. ‖θ‖ and the test columns are those of the model that is the result.
    """
    chosen = chains.chosen
    requests = []
    for one in chains.all():
        part, sources = one.inputs.problem, dict[str, Source]()
        if (one is chains.whole or chains.whole is None) and part.train.size != 0:
            sources["train"] = part.train
        if one is not chains.whole:
            sources["valid"] = part.valid
        if test is not None and one is chosen:
            sources["test"] = test
        state, work = one.lead or one, one.inputs.forwards.work_on(sources.values())
        requests.append(EvaluationRequest(part, sources, state.params, state.buffers, hyper, work))
    found: list[Row] = yield requests
    if len(found) == 1:
        return found[0]
    columns = {name: [row[name] for row in found if name in row] for row in found for name in row}
    means = {name: sum(values) / len(values) for name, values in columns.items()}
    ordered = sorted(means, key=lambda name: (name != "weight_norm", *map(name.startswith, ("test_", "valid_"))))
    return {name: means[name] for name in ordered} | {"weight_norm": found[chains.all().index(chosen)]["weight_norm"]}
