"""`zeta="auto"`: ζ and the outer step to keep, by cross-validation and without any test data."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.columns import Row
from pactune.engines import Eager
from pactune.errors import RunFolderError, SettingError
from pactune.objectives import AutoZeta, RelativeZeta
from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.results.callbacks import Callback
from pactune.results.result import Result
from pactune.results.verdict import Verdict, judge_held_out
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.runner import Runner
from pactune.streams import Streams
from pactune.tracking.recorder import CheckpointSchedule, Recorder, resume_together
from pactune.trees import Params, clone
from pactune.tuning.copies import copied_settings
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import Choice, FitSettings
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.settings import TunerSettings

__all__ = ["fit_auto"]

PLAIN = "plain"


def fit_auto(run: OuterRun, settings: FitSettings, rule: AutoZeta, listeners: Listeners, progress: Callback) -> Result:
    """Cross-validate the candidates, then run the best one on all rows and keep its best step.

    Args:
        run: the run on all rows, at its start.
        settings: the arguments of `fit`.
        rule: the candidates and the folds.
        listeners: the user's callbacks, which hear the final run alone.
        progress: a callback that hears every outer step of every run.
    """
    start = _StartOfRuns.remembered(run, settings.recorder.part("start"))
    _check(run)
    scale = rule.scale or _initial_risk(run.problem)
    candidates = [
        _Candidate(k, fold, fraction, plain=i == 0)
        for k, fold in enumerate(_folds(run.settings, rule))
        for i, fraction in enumerate(rule.fractions)
    ]
    scores = _HeldOutScores()
    for group in _groups(run, start, candidates):
        scorers = [_Scorer(own.problem, one.fold.held, scale, _label(one.fraction), one.plain) for one, own in group]
        heard = [listeners.only(scorer, progress) for scorer in scorers]
        results = _fit_in_lockstep(run, settings, group, heard)
        for scorer in scorers:
            scorer.add_to(scores, settings.outer_steps)
        if stopped := [result for result in results if result.status == "interrupted"]:
            start.restore(run)
            model, hyper = run.problem.model, run.problem.hyper
            return replace(stopped[0], rows=[], plain_rows=[], kept_step=0, model=model, hyper=hyper)
    start.restore(run)
    scores = run.ranks.object_from_leader(scores)  # rounding must not let ranks choose differently
    best = scores.best(_labels(rule))
    tuned = scores.best([label for label in _labels(rule) if label != PLAIN])
    choice = Choice("plain" if best.label == PLAIN else "tuned", best.step)
    verdict = scores.verdict(tuned, scores.best([PLAIN]))
    final = replace(settings, choice=choice, verdict=verdict, plain_steps=settings.outer_steps)
    fraction = next(f for f in rule.fractions if _label(f) == tuned.label)
    result = Fit(run, final, RelativeZeta(fraction), listeners.with_another(progress)).result()
    return replace(result, trials=scores.rows())


class _Candidate(NamedTuple):
    """A value of ζ on the rows of one fold; `plain` also scores plain training there."""

    number: int
    fold: _Fold
    fraction: float
    plain: bool

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"fold-{self.number}-fraction-{self.fraction:g}"


Group = list[tuple[_Candidate, TunerSettings]]


def _groups(run: OuterRun, start: _StartOfRuns, candidates: list[_Candidate]) -> Iterator[Group]:
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


def _fit_in_lockstep(run: OuterRun, settings: FitSettings, group: Group, listeners: list[Listeners]) -> list[Result]:
    """Tune λ on the folds of a group in lockstep, without evaluations."""
    runner, schedule, fits = Runner(run.runner.engine), CheckpointSchedule(), list[Fit]()
    for (candidate, own), heard in zip(group, listeners, strict=True):
        fold = candidate.fold
        quiet = replace(
            settings,
            test=None,
            plain_steps=settings.outer_steps if candidate.plain else 0,
            on_divergence="return",
            choice=None,
            evaluate=False,
            recorder=settings.recorder.part(candidate.name, schedule),
        )
        there = OuterRun(replace(own, problem=own.problem.subset(fold.train, fold.valid)), run.ranks, runner)
        fits.append(Fit(there, quiet, RelativeZeta(candidate.fraction), heard))
    resume_together([fit.settings.recorder for fit in fits])
    requests = [fit.requests() for fit in fits]
    return run_in_lockstep(requests, runner, interrupted=lambda result: result.status == "interrupted")


def runs_of(rule: AutoZeta) -> int:
    """Return the number of tuned runs of the rule, the final one included."""
    return rule.folds * len(rule.fractions) + 1


class _BestStep(NamedTuple):
    """The outer step of a candidate with the least mean score."""

    label: str
    step: int
    rows: Tensor


class _HeldOutScores:
    """The scores of held-out rows by candidate and outer step. Smaller is better."""

    def __init__(self) -> None:
        self._parts: dict[str, list[list[Tensor]]] = {}

    def add(self, label: str, fold_scores: list[Tensor]) -> None:
        """Add the scores of one fold: a vector of row scores per outer step."""
        steps = self._parts.setdefault(label, [[] for _ in fold_scores])
        for step, rows in zip(steps, fold_scores, strict=True):
            step.append(rows)

    def best(self, labels: list[str]) -> _BestStep:
        """Return the step with the least mean score. Of equal ones, the first label and the earliest step win."""
        options = [
            _BestStep(label, step, torch.cat(parts))
            for label in labels
            for step, parts in enumerate(self._parts[label], start=1)
        ]
        return min(options, key=lambda option: float(option.rows.mean()))

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

    def __init__(self, problem: Problem, held: list[Source], scale: float, label: str, plain: bool) -> None:
        self._problem, self._held, self._scale, self._label = problem, held, scale, label
        self._tuned: list[Tensor] = []
        self._plain: list[Tensor] | None = [] if plain else None

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
        """Return 1 − exp(−loss/scale) of every held row. A loss that is NaN has the worst score."""
        losses = torch.cat([self._problem.row_losses(source) for source in self._held])
        return (1 - torch.exp(-losses / self._scale)).nan_to_num(nan=1.0)


class _Fold(NamedTuple):
    train: Tensor
    valid: Tensor
    held: list[Source]


def _folds(settings: TunerSettings, rule: AutoZeta) -> list[_Fold]:
    """Return the rows of every fold. The seed decides which rows a fold holds out."""
    problem, streams = settings.problem, Streams(settings.seed)

    def parts(source: Source, role: str) -> list[Tensor]:
        if source.rows < rule.folds:
            raise SettingError(f'`zeta="auto"` needs at least folds={rule.folds} {role} rows, got {source.rows}')
        order = torch.randperm(source.rows, generator=streams.generator("folds", role), device="cpu")
        return list(order.tensor_split(rule.folds))

    def without(pieces: list[Tensor], k: int) -> Tensor:
        return torch.cat([piece for i, piece in enumerate(pieces) if i != k]).sort().values

    valid = parts(problem.valid, "validation")
    if problem.has_folds:  # every row trains and validates, so a held-out row is left out of all folds
        return [
            _Fold(without(valid, k), without(valid, k), [problem.valid.subset(valid[k])]) for k in range(rule.folds)
        ]
    if rule.judge == "valid":
        every = torch.arange(problem.train.rows, device="cpu")
        return [_Fold(every, without(valid, k), [problem.valid.subset(valid[k])]) for k in range(rule.folds)]
    train = parts(problem.train, "training")
    return [
        _Fold(without(train, k), without(valid, k), [problem.train.subset(train[k]), problem.valid.subset(valid[k])])
        for k in range(rule.folds)
    ]


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
                recorder.save(lambda: {"rows": [], "plain_rows": [], "start": vars(start)})
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


def _check(run: OuterRun) -> None:
    if run.settings.online:
        raise SettingError('`zeta="auto"` is for online=False; pass a number')
    if not run.settings.objective.has_path:
        raise SettingError(f'`zeta="auto"` needs an objective with a regularizer, got {run.settings.objective}')
    if run.chains.rounds:
        raise SettingError('`zeta="auto"` starts from the beginning and this tuner has run; make a new one')


def _initial_risk(problem: Problem) -> float:
    """Return the validation risk before training, by which losses are scaled."""
    risk = problem.evaluate(problem.valid).risk
    if not (math.isfinite(risk) and risk > 0):
        raise SettingError(
            f"the validation risk before training is {risk:.4g} and cannot scale the score; "
            "pass `zeta=AutoZeta(scale=...)`"
        )
    return risk


def _label(fraction: float) -> str:
    return "ζ = 0" if fraction == 0 else f"ζ = {fraction:g} ζ*"


def _labels(rule: AutoZeta) -> list[str]:
    """Return all candidates, the simplest first: plain training, then decreasing ζ."""
    return [PLAIN, *(_label(fraction) for fraction in sorted(rule.fractions, reverse=True))]
