"""Runs that hold rows out, so that neither θ nor λ sees them, and the choice of a run and a step by their scores.

Candidates run on copies of the modules, in lockstep. Each scores its held-out rows after every outer step. The final
run then goes on all rows, and keeps the step with the best score.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.columns import Row
from pactune.engines import Eager
from pactune.errors import RunFolderError, SettingError
from pactune.objectives import RelativeZeta
from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.results.callbacks import Callback
from pactune.results.result import Result
from pactune.results.verdict import Verdict, judge_held_out
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.runner import Runner
from pactune.tracking.recorder import CheckpointSchedule, Recorder, resume_together
from pactune.trees import Params, clone
from pactune.tuning.copies import copied_settings
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import Choice, FitSettings
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.settings import TunerSettings

__all__ = ["PLAIN", "Candidate", "HeldOutRule", "fit_by_held_out_rows", "initial_risk"]

PLAIN = "plain"


class Candidate(NamedTuple):
    """A run that holds rows out.

    Attributes:
        name: the name of the run's folder.
        label: candidates of one label differ in their held-out rows alone.
        zeta: ζ, or its size relative to ζ*.
        on: returns the problem without the held-out rows.
        held: the held-out rows.
        plain: True if plain training is scored on these rows too.
    """

    name: str
    label: str
    zeta: float | RelativeZeta
    on: Callable[[Problem], Problem]
    held: list[Source]
    plain: bool


class HeldOutRule(NamedTuple):
    """How a run and an outer step are chosen.

    Attributes:
        candidates: the runs.
        labels: the labels of the candidates, the first ones win ties; plain training is `PLAIN`.
        scale: the loss of a row has the score 1 − exp(−loss/scale). Smaller is better.
        window: the number of outer steps over which scores are averaged.
    """

    candidates: Sequence[Candidate]
    labels: Sequence[str]
    scale: float
    window: int = 1

    def score(self, losses: Tensor) -> Tensor:
        """Return the score of every row, between 0 and 1 for losses that are not negative; a NaN has the worst."""
        return (1 - torch.exp(-losses / self.scale)).nan_to_num(nan=1.0)


def fit_by_held_out_rows(
    run: OuterRun,
    settings: FitSettings,
    make_rule: Callable[[], HeldOutRule],
    listeners: Listeners,
    progress: Callback,
) -> Result:
    """Run the candidates, then run the best one on all rows and keep its best step.

    Args:
        run: the run on all rows, at its start.
        settings: the arguments of `fit`.
        make_rule: returns the candidates and how they are compared. It is called at the start of the run.
        listeners: the user's callbacks, which hear the final run alone.
        progress: a callback that hears every outer step of every run.
    """
    start = _StartOfRuns.remembered(run, settings.recorder.part("start"))
    if run.chains.rounds:
        raise SettingError("rows are held out from the beginning and this tuner has run; make a new one")
    rule = make_rule()
    scores = _HeldOutScores(rule.window)
    for group in _groups(run, start, rule.candidates):
        scorers = [_Scorer(own.problem, one, rule) for one, own in group]
        heard = [listeners.only(scorer, progress) for scorer in scorers]
        results = _fit_in_lockstep(run, settings, group, heard)
        for scorer in scorers:
            scorer.add_to(scores, settings.outer_steps)
        if stopped := [result for result in results if result.status == "interrupted"]:
            start.restore(run)
            run.problem.rest()
            model, hyper = run.problem.model, run.problem.hyper
            return replace(stopped[0], rows=[], plain_rows=[], kept_step=0, model=model, hyper=hyper)
    start.restore(run)
    scores = run.ranks.object_from_leader(scores)  # rounding must not let ranks choose differently
    best = scores.best(rule.labels)
    tuned = scores.best([label for label in rule.labels if label != PLAIN])
    choice = Choice("plain" if best.label == PLAIN else "tuned", best.step)
    verdict = scores.verdict(tuned, scores.best([PLAIN]))
    final = replace(settings, choice=choice, verdict=verdict, plain_steps=settings.outer_steps)
    zeta = next(one.zeta for one in rule.candidates if one.label == tuned.label)
    result = Fit(run, final, zeta, listeners.with_another(progress)).result()
    return replace(result, trials=scores.rows())


CandidateGroup = list[tuple[Candidate, TunerSettings]]


def _groups(run: OuterRun, start: _StartOfRuns, candidates: Sequence[Candidate]) -> Iterator[CandidateGroup]:
    """Yield groups of candidates that run in lockstep, each candidate with the settings of its run at the start.

    On copies of the modules, all candidates are one group. The eager engine gains nothing by that, and some modules
    cannot be copied. Then each candidate is a group, and it runs on the user's own modules.
    """
    eager = isinstance(run.runner.engine, Eager)
    copies = None if eager else copied_settings(run.settings, len(candidates))
    if copies is not None:
        yield list(zip(candidates, copies, strict=True))
        return
    for candidate in candidates:
        start.restore(run)
        yield [(candidate, run.settings)]


def _fit_in_lockstep(
    run: OuterRun, settings: FitSettings, group: CandidateGroup, listeners: list[Listeners]
) -> list[Result]:
    """Tune λ on the folds of a group in lockstep, without evaluations."""
    runner, schedule, fits = Runner(run.runner.engine), CheckpointSchedule(), list[Fit]()
    for (candidate, own), heard in zip(group, listeners, strict=True):
        problem = candidate.on(own.problem)
        differs = {"problems": problem.trained, "folds": problem.fingerprints().get("folds", [])}
        quiet = replace(
            settings,
            test=None,
            keep="last",
            plain_steps=settings.outer_steps if candidate.plain else 0,
            on_divergence="return",
            choice=None,
            evaluate_every=0,
            recorder=settings.recorder.part(candidate.name, schedule, **differs),
        )
        there = OuterRun(replace(own, problem=problem), run.ranks, runner)
        fits.append(Fit(there, quiet, candidate.zeta, heard))
    resume_together([fit.settings.recorder for fit in fits])
    requests = [fit.requests() for fit in fits]
    return run_in_lockstep(requests, runner, interrupted=lambda result: result.status == "interrupted")


class _BestStep(NamedTuple):
    """The outer step of a candidate with the least mean score, and the scores of the rows."""

    label: str
    step: int
    rows: Tensor


class _HeldOutScores:
    """The scores of held-out rows by candidate and outer step. Smaller is better.

    Args:
        window: the number of outer steps over which scores are averaged.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._parts: dict[str, list[list[Tensor]]] = {}

    def add(self, label: str, fold_scores: list[Tensor]) -> None:
        """Add the scores of one fold: a vector of row scores per outer step."""
        steps = self._parts.setdefault(label, [[] for _ in fold_scores])
        for step, rows in zip(steps, fold_scores, strict=True):
            step.append(rows)

    def best(self, labels: Sequence[str]) -> _BestStep:
        """Return the step with the least mean score. Of equal ones, the first label and the earliest step win."""
        options = [
            _BestStep(label, step, rows) for label in labels for step, rows in enumerate(self._smooth(label), start=1)
        ]
        return min(options, key=lambda option: float(option.rows.mean()))

    def _smooth(self, label: str) -> list[Tensor]:
        """Return the scores of all rows at every step, averaged over the window around the step."""
        steps, reach = torch.stack([torch.cat(parts) for parts in self._parts[label]]), self._window // 2
        return [steps[max(0, step - reach) : step + reach + 1].mean(0) for step in range(len(steps))]

    def verdict(self, tuned: _BestStep, plain: _BestStep) -> Verdict:
        """Compare the best tuned step with the best plain one, row by row."""
        gap = plain.rows - tuned.rows
        return judge_held_out(float(gap.mean()), float(gap.std()) / math.sqrt(len(gap)))

    def rows(self) -> list[Row]:
        """Return a row per candidate and outer step."""
        table = []
        for label, steps in self._parts.items():
            for step, parts in enumerate(steps, start=1):
                rows = torch.cat(parts)
                error = float(rows.std()) / math.sqrt(len(rows))
                table.append({"candidate": label, "outer_step": step, "score": float(rows.mean()), "error": error})
        return table


class _Scorer(Callback):
    """Scores the held rows after every outer step of a fold, and of plain training beside it."""

    def __init__(self, problem: Problem, candidate: Candidate, rule: HeldOutRule) -> None:
        self._problem, self._held, self._label, self._rule = problem, candidate.held, candidate.label, rule
        self._tuned: list[Tensor] = []
        self._plain: list[Tensor] | None = [] if candidate.plain else None

    def on_outer_step(self, tuner: Any, row: Row) -> None:
        """Score the tuned model."""
        self._tuned.append(self._score())

    def on_plain_step(self, tuner: Any, row: Row) -> None:
        """Score the plain model."""
        if self._plain is not None:
            self._plain.append(self._score())

    def state_dict(self) -> dict[str, Any]:
        """Return the scores so far. A resumed run does not compute them again."""
        return {"tuned": self._tuned, "plain": self._plain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the scores.

        Raises:
            RunFolderError: the scores in the checkpoint are not those of the held rows.
        """
        rows = sum(source.rows for source in self._held)
        for found in (state.get("tuned"), [] if state.get("plain") is None else state["plain"]):
            whole = isinstance(found, list) and all(isinstance(one, Tensor) and one.shape == (rows,) for one in found)
            if not whole or (self._plain is None) != (state.get("plain") is None):
                raise RunFolderError(f"the scores of {self._label} in the checkpoint are not those of {rows} held rows")
        self._tuned, self._plain = state["tuned"], state["plain"]

    def add_to(self, scores: _HeldOutScores, steps: int) -> None:
        """Hand the scores in; an outer step that the run did not reach has the worst score."""
        for label, found in ((self._label, self._tuned), (PLAIN, self._plain)):
            if found:
                missing = [torch.ones_like(found[0])] * (steps - len(found))
                scores.add(label, found + missing)

    def _score(self) -> Tensor:
        """Return the score of every held row."""
        return self._rule.score(torch.cat([self._problem.row_losses(source) for source in self._held]))


@dataclass(frozen=True)
class _StartOfRuns:
    """The state in which every run begins: θ, buffers, λ and the outer optimizer's state."""

    params: Params
    buffers: Params
    hyper: Params
    outer: dict[str, Any]

    @classmethod
    def of(cls, run: OuterRun) -> _StartOfRuns:
        problem = run.problem
        outer = copy.deepcopy(run.settings.outer.state_dict())
        return cls(clone(problem.parameters()), clone(problem.buffers()), clone(problem.hyperparameters()), outer)

    @classmethod
    def remembered(cls, run: OuterRun, recorder: Recorder) -> _StartOfRuns:
        """Return the start of the run to resume, and put the run there; without one, the present state."""
        with recorder:
            saved = recorder.load(run.problem.device)
            if saved is None:
                start = cls.of(run)
                recorder.save(0, lambda: {"start": vars(start)}, {})
                recorder.end(status="completed")
                return start
        start = cls(**saved["start"])
        start.restore(run)
        run.start_from(start.hyper)
        return start

    def restore(self, run: OuterRun) -> None:
        """Put the modules and the optimizer back."""
        run.problem.load(self.params, self.buffers)
        run.problem.load_hyper(self.hyper)
        run.settings.outer.load_state_dict(copy.deepcopy(self.outer))


def initial_risk(problem: Problem) -> float:
    """Return the validation risk before training, by which losses are scaled."""
    risk = problem.evaluate(problem.valid).risk
    if not (math.isfinite(risk) and risk > 0):
        raise SettingError(
            f"the validation risk before training is {risk:.4g} and cannot scale the score of held-out rows; "
            'with `zeta="auto"` pass `zeta=AutoZeta(scale=...)`'
        )
    return risk
