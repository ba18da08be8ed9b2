"""Stepwise forward selection under any criterion."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pactune.selection.criteria import Criterion, Scores
from pactune.selection.rows import Rows, validation_r2

__all__ = ["Step", "best_size", "forward_path"]


class Step(NamedTuple):
    """One model of the path.

    Attributes:
        feature: column added at this step, None for the empty model.
        objective: the value of the criterion, which selection minimises.
        risk: the risk in the objective.
        regularizer: the penalty or regularizer in the objective.
        validation_r2: R² on the validation rows of the least-squares fit to the training rows.
    """

    feature: int | None
    objective: float
    risk: float
    regularizer: float
    validation_r2: float


def forward_path(rows: Rows, criterion: Criterion, *, max_features: int, patience: int | None = None) -> list[Step]:
    """Add at each step the feature with the smallest objective, starting from none.

    Args:
        rows: standardised training and validation rows.
        criterion: the criterion to minimise.
        max_features: number of steps; fewer are taken if no usable feature is left.
        patience: the path also ends after this many steps without a new minimum of the objective. None never ends it.

    Returns:
        The empty model and one step per feature.
    """
    state = criterion.start(rows)
    path = [_step(rows, criterion.empty(state), 0, None, [])]
    chosen: list[int] = []
    while len(chosen) < max_features and not _has_stalled(path, patience):
        scores = criterion.scores(state)
        feature = int(np.argmin(scores.objective))
        if not math.isfinite(scores.objective[feature]):
            break
        chosen.append(feature)
        path.append(_step(rows, scores, feature, feature, chosen))
        state = criterion.extend(state, feature)
    return path


def best_size(path: list[Step], *, min_features: int = 0) -> int:
    """Return the number of features at the minimum of the objective along the path; the smaller one of equal minima."""
    objectives = [step.objective for step in path]
    first = min(min_features, len(path) - 1)
    return first + int(np.argmin(objectives[first:]))


def _has_stalled(path: list[Step], patience: int | None) -> bool:
    return patience is not None and len(path) - 1 - best_size(path) >= patience


def _step(rows: Rows, scores: Scores, index: int, feature: int | None, chosen: list[int]) -> Step:
    return Step(
        feature,
        float(scores.objective[index]),
        float(scores.risk[index]),
        float(scores.regularizer[index]),
        validation_r2(rows, chosen),
    )
