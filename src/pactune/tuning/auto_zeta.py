"""`zeta="auto"`: ζ and the outer step to keep, by cross-validation and without any test data."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pactune.columns import Row
from pactune.errors import RunFolderError, SettingError
from pactune.objectives import AutoZeta, RelativeZeta
from pactune.problem.data import Source
from pactune.results.callbacks import Callback
from pactune.results.result import Result
from pactune.results.verdict import Verdict, judge_held_out
from pactune.streams import Streams
from pactune.tracking.recorder import Recorder
from pactune.trees import Params, clone
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import Choice, FitSettings

if TYPE_CHECKING:
    from pactune.tuning.tuner import Tuner

__all__ = ["fit_auto"]

PLAIN = "plain"


def fit_auto(tuner: Tuner, settings: FitSettings, rule: AutoZeta, shared: Callback) -> Result:
    """Cross-validate the candidates, then run the best one on all rows and keep its best step.

    Args:
        tuner: at its start.
        settings: of the final run.
        rule: how ζ is chosen.
        shared: a listener to every outer step of every run, for progress.
    """
    start = _Start.remembered(tuner, settings.recorder.part("start"))
    _check(tuner)
    scale = rule.scale or _initial_risk(tuner)
    scores = _Scores()
    for k, fold in enumerate(_folds(tuner, rule)):
        for i, fraction in enumerate(rule.fractions):
            judge = _Judge(fold.held, scale, scores, _label(fraction), plain=i == 0)
            quiet = replace(
                settings,
                test=None,
                callbacks=(judge, shared),
                plain_steps=settings.outer_steps if i == 0 else 0,
                on_divergence="return",
                choice=None,
                evaluate=False,
                recorder=settings.recorder.part(f"fold-{k}-fraction-{fraction:g}"),
            )
            outcome = Fit(start.twin(tuner, fold), quiet, RelativeZeta(fraction)).run()
            judge.close(settings.outer_steps)
            if outcome.status == "interrupted":
                start.restore(tuner)
                return replace(outcome, rows=[], plain_rows=[], kept_step=0, model=tuner.problem.model)
    start.restore(tuner)
    scores = tuner.ranks.object_from_leader(scores)  # rounding must not let ranks choose differently
    best = scores.best(_labels(rule))
    tuned = scores.best([label for label in _labels(rule) if label != PLAIN])
    choice = Choice("plain" if best.label == PLAIN else "tuned", best.step)
    verdict = scores.verdict(tuned, scores.best([PLAIN]))
    listeners = (*settings.callbacks, shared)
    final = replace(settings, choice=choice, verdict=verdict, callbacks=listeners, plain_steps=settings.outer_steps)
    fraction = next(f for f in rule.fractions if _label(f) == tuned.label)
    result = Fit(tuner, final, RelativeZeta(fraction)).run()
    return replace(result, trials=scores.rows())


def runs_of(rule: AutoZeta) -> int:
    """Return how many tuned runs the rule makes, the final one included."""
    return rule.folds * len(rule.fractions) + 1


class _Best(NamedTuple):
    label: str
    step: int
    rows: Tensor


class _Scores:
    """Scores of held rows by candidate and outer step; smaller is better."""

    def __init__(self) -> None:
        self._parts: dict[str, list[list[Tensor]]] = {}

    def add(self, label: str, fold_scores: list[Tensor]) -> None:
        """Take in one fold: a vector of row scores per outer step."""
        steps = self._parts.setdefault(label, [[] for _ in fold_scores])
        for step, rows in zip(steps, fold_scores, strict=True):
            step.append(rows)

    def best(self, labels: list[str]) -> _Best:
        """Return the least mean score; among equals the first label, then the earliest step."""
        options = [
            _Best(label, step, torch.cat(parts))
            for label in labels
            for step, parts in enumerate(self._parts[label], start=1)
        ]
        return min(options, key=lambda option: float(option.rows.mean()))

    def verdict(self, tuned: _Best, plain: _Best) -> Verdict:
        """Judge the best tuned step against the best plain one, row by row."""
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


class _Judge(Callback):
    """Scores the held rows after every outer step of a fold, and of the plain run beside it."""

    def __init__(self, held: list[Source], scale: float, scores: _Scores, label: str, *, plain: bool) -> None:
        self._held, self._scale, self._scores, self._label = held, scale, scores, label
        self._tuned: list[Tensor] = []
        self._plain: list[Tensor] | None = [] if plain else None

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """Score the tuned model."""
        self._tuned.append(self._score(tuner))

    def on_plain_step(self, tuner: Tuner, row: Row) -> None:
        """Score the plain model."""
        if self._plain is not None:
            self._plain.append(self._score(tuner))

    def state_dict(self) -> dict[str, Any]:
        """Return the scores so far, which a resumed run does not make again."""
        return {"tuned": self._tuned, "plain": self._plain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the scores.

        Raises:
            RunFolderError: the scores in the checkpoint are not those of the held rows.
        """
        rows = sum(source.rows for source in self._held)
        for found in (state.get("tuned"), [] if state.get("plain") is None else state["plain"]):
            whole = isinstance(found, list) and all(isinstance(one, Tensor) and one.shape == (rows,) for one in found)
            if not whole or (self._plain is None) != (state.get("plain") is None):
                raise RunFolderError(f"the scores of {self._label} in the checkpoint are not those of {rows} held rows")
        self._tuned, self._plain = state["tuned"], state["plain"]

    def close(self, steps: int) -> None:
        """Hand the scores in; an outer step that was not reached has the worst score."""
        for label, found in ((self._label, self._tuned), (PLAIN, self._plain)):
            if found:
                missing = [torch.ones_like(found[0])] * (steps - len(found))
                self._scores.add(label, found + missing)

    def _score(self, tuner: Tuner) -> Tensor:
        """Return 1 − exp(−loss/scale) of every held row; a loss that is no number counts as the worst."""
        losses = torch.cat([tuner.problem.row_losses(source) for source in self._held])
        return (1 - torch.exp(-losses / self._scale)).nan_to_num(nan=1.0)


class _Fold(NamedTuple):
    train: Tensor
    valid: Tensor
    held: list[Source]


def _folds(tuner: Tuner, rule: AutoZeta) -> list[_Fold]:
    """Return the rows of every fold, in a random order that is a function of the seed."""
    problem, streams = tuner.problem, Streams(tuner.seed)

    def parts(source: Source, role: str) -> list[Tensor]:
        if source.rows < rule.folds:
            raise SettingError(f'`zeta="auto"` needs at least folds={rule.folds} {role} rows, got {source.rows}')
        order = torch.randperm(source.rows, generator=streams.generator("folds", role), device="cpu")
        return list(order.tensor_split(rule.folds))

    def without(pieces: list[Tensor], k: int) -> Tensor:
        return torch.cat([piece for i, piece in enumerate(pieces) if i != k]).sort().values

    valid = parts(problem.valid, "validation")
    if rule.judge == "valid":
        every = torch.arange(problem.train.rows, device="cpu")
        return [_Fold(every, without(valid, k), [problem.valid.subset(valid[k])]) for k in range(rule.folds)]
    train = parts(problem.train, "training")
    return [
        _Fold(without(train, k), without(valid, k), [problem.train.subset(train[k]), problem.valid.subset(valid[k])])
        for k in range(rule.folds)
    ]


@dataclass(frozen=True)
class _Start:
    """Where every run begins: θ, buffers, λ and the outer optimizer's state."""

    params: Params
    buffers: Params
    hyper: Params
    outer: dict[str, Any]

    @classmethod
    def of(cls, tuner: Tuner) -> _Start:
        problem = tuner.problem
        state = copy.deepcopy(tuner.outer.state_dict())
        return cls(clone(problem.parameters()), clone(problem.buffers()), clone(problem.hyperparameters()), state)

    @classmethod
    def remembered(cls, tuner: Tuner, recorder: Recorder) -> _Start:
        """Return the start of the run to resume, and put the tuner there; without one, the present."""
        with recorder:
            saved = recorder.load(tuner.problem.device)
            if saved is None:
                start = cls.of(tuner)
                recorder.save(lambda: {"rows": [], "plain_rows": [], "start": vars(start)})
                recorder.end(status="completed")
                return start
        start = cls(**saved["start"])
        start.restore(tuner)
        tuner.start_hyper = clone(start.hyper)
        return start

    def restore(self, tuner: Tuner) -> None:
        """Put everything back."""
        tuner.problem.load(self.params, self.buffers)
        tuner.problem.load_hyper(self.hyper)
        tuner.outer.load_state_dict(copy.deepcopy(self.outer))

    def twin(self, tuner: Tuner, fold: _Fold) -> Tuner:
        """Return the tuner on the rows of a fold, at the start."""
        self.restore(tuner)
        return tuner.on(tuner.problem.subset(fold.train, fold.valid))


def _check(tuner: Tuner) -> None:
    if tuner.online:
        raise SettingError('`zeta="auto"` is for online=False; pass a number')
    if not tuner.objective.has_path:
        raise SettingError(f'`zeta="auto"` needs an objective with a regularizer, got {tuner.objective}')
    if tuner.lane.rounds:
        raise SettingError('`zeta="auto"` starts from the beginning and this tuner has run; make a new one')


def _initial_risk(tuner: Tuner) -> float:
    """Return the validation risk before training, by which losses are scaled."""
    risk = tuner.problem.evaluate(tuner.problem.valid).risk
    if not (math.isfinite(risk) and risk > 0):
        raise SettingError(
            f"the validation risk before training is {risk:.4g} and cannot scale the score; "
            "pass `zeta=AutoZeta(scale=...)`"
        )
    return risk


def _label(fraction: float) -> str:
    return "ζ = 0" if fraction == 0 else f"ζ = {fraction:g} ζ*"


def _labels(rule: AutoZeta) -> list[str]:
    """Return all candidates, the simplest first: plain, then decreasing ζ."""
    return [PLAIN, *(_label(fraction) for fraction in sorted(rule.fractions, reverse=True))]
