"""`zeta="auto"`: ζ and the outer step to keep, by cross-validation and without any test data."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.errors import SettingError
from pactune.objectives import AutoZeta, RelativeZeta
from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.results.callbacks import Callback
from pactune.results.result import Result
from pactune.streams import Streams
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.held_out import PLAIN, Candidate, HeldOutRule, fit_by_held_out_rows, initial_risk
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.settings import TunerSettings

__all__ = ["fit_auto", "runs_of"]


def fit_auto(run: OuterRun, settings: FitSettings, rule: AutoZeta, listeners: Listeners, progress: Callback) -> Result:
    """Cross-validate the candidates, then run the best one on all rows and keep its best step."""
    return fit_by_held_out_rows(run, settings, partial(_held_out_rule, run, rule), listeners, progress)


def _held_out_rule(run: OuterRun, rule: AutoZeta) -> HeldOutRule:
    candidates = [
        Candidate(
            f"fold-{k}-fraction-{fraction:g}",
            _label(fraction),
            RelativeZeta(fraction),
            partial(_on_fold, fold),
            fold.held,
            plain=i == 0,
        )
        for k, fold in enumerate(_folds(run.settings, rule))
        for i, fraction in enumerate(rule.fractions)
    ]
    return HeldOutRule(candidates, _labels(rule), rule.scale or initial_risk(run.problem))


def runs_of(rule: AutoZeta) -> int:
    """Return the number of tuned runs of the rule, the final one included."""
    return rule.folds * len(rule.fractions) + 1


def _on_fold(fold: _Fold, problem: Problem) -> Problem:
    """Return a problem on the rows of a fold. A problem with folds keeps them among these rows."""
    return problem.folds_within(fold.valid) if problem.has_folds else problem.subset(fold.train, fold.valid)


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


def _label(fraction: float) -> str:
    return "ζ = 0" if fraction == 0 else f"ζ = {fraction:g} ζ*"


def _labels(rule: AutoZeta) -> list[str]:
    """Return all candidates, the simplest first: plain training, then decreasing ζ."""
    return [PLAIN, *(_label(fraction) for fraction in sorted(rule.fractions, reverse=True))]
