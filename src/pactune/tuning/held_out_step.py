"""`keep="held-out"`: the outer step to keep of a run with folds, by rows that neither θ nor λ has seen.

The out-of-fold scores of a run are biased, since its λ was tuned on them. So one more run per fold holds the fold out
of everything: it trains without fold k and fold k + 1, tunes its own λ on fold k + 1, and scores fold k.
"""

from __future__ import annotations

from functools import partial

import torch

from pactune.errors import SettingError
from pactune.problem import Problem
from pactune.problem.folds import FoldRows
from pactune.results.callbacks import Callback
from pactune.results.result import Result
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.held_out import PLAIN, Candidate, HeldOutRule, fit_by_held_out_rows, initial_risk
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun

__all__ = ["fit_held_out_step"]

TUNED = "tuned"
WINDOW = 3  # outer steps; a single step's score is noisy on few rows


def fit_held_out_step(run: OuterRun, settings: FitSettings, listeners: Listeners, progress: Callback) -> Result:
    """Run with folds, and keep the outer step whose held-out score is least, of the tuned or of the plain run.

    Raises:
        SettingError: the problem has no folds, or too few rows to hold one of them out.
    """
    if not run.problem.has_folds:
        raise SettingError('`keep="held-out"` holds folds out in turn; pass the rows as Problem(data=, folds=)')
    return fit_by_held_out_rows(run, settings, partial(_rule, run), listeners, progress)


def _rule(run: OuterRun) -> HeldOutRule:
    problem, zeta = run.problem, run.settings.zeta
    candidates = []
    for k, (held, rows) in enumerate(zip(problem.fold_rows, _nested(problem), strict=True)):
        unseen = [problem.valid.subset(held.valid)]
        candidates.append(Candidate(f"held-out-{k}", TUNED, zeta, partial(_on_rows, rows), unseen, plain=True))
    return HeldOutRule(candidates, [PLAIN, TUNED], initial_risk(problem), WINDOW)


def _nested(problem: Problem) -> list[FoldRows]:
    """Return, for every fold, the rows that train and tune while it is held out."""
    folds = problem.fold_rows
    found = []
    for k, fold in enumerate(folds):
        following = folds[(k + 1) % len(folds)]
        train = following.train[torch.isin(following.train, fold.train)]
        valid = following.valid[~torch.isin(following.valid, fold.valid)]
        if not len(train) or not len(valid):
            raise SettingError(f"no rows are left to train or to tune on while fold {k} is held out; use more folds")
        found.append(FoldRows(train, valid))
    return found


def _on_rows(rows: FoldRows, problem: Problem) -> Problem:
    return problem.subset(rows.train, rows.valid)
