"""Criteria at the least-squares fit: the validation risk, the paper's AIC, and the extended BIC."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pactune.selection.criteria import Scores
from pactune.selection.moments import Array
from pactune.selection.rows import Rows, pool

__all__ = ["Akaike", "ExtendedBayes", "ValidationScore"]

# A candidate is collinear if its variance orthogonal to the chosen features is below this share.
_COLLINEAR = 1e-10
# A fit is perfect if its residual is below this share of the target's variance; what remains is rounding.
_PERFECT = 1e-12


class _Residuals(NamedTuple):
    """Columns and targets of both parts after regression on the chosen features, with training coefficients."""

    train: Array
    train_target: Array
    valid: Array
    valid_target: Array
    open: NDArray[np.bool_]
    chosen: int


class _LeastSquares:
    """Base of the criteria that fit by least squares; a step costs O(n p) for all candidates together."""

    def start(self, rows: Rows) -> _Residuals:
        return _Residuals(rows.train, rows.train_target, rows.valid, rows.valid_target, rows.usable, 0)

    def extend(self, state: _Residuals, feature: int) -> _Residuals:
        column, valid_column = state.train[:, feature], state.valid[:, feature]
        power = column @ column
        shares, target_shares = column @ state.train / power, column @ state.train_target / power
        train = state.train - np.outer(column, shares)
        left = np.einsum("ij,ij->j", train, train) > _COLLINEAR * len(train)
        still_open = state.open & left
        still_open[feature] = False
        return _Residuals(
            train,
            state.train_target - np.outer(column, target_shares),
            state.valid - np.outer(valid_column, shares),
            state.valid_target - np.outer(valid_column, target_shares),
            still_open,
            state.chosen + 1,
        )


def _risks_after(state: _Residuals) -> Array:
    """Return the mean squared validation error after adding each candidate and refitting. Shape `(p, q)`."""
    power = np.einsum("ij,ij->j", state.train, state.train)
    with np.errstate(divide="ignore", invalid="ignore"):
        coefficients = (state.train.T @ state.train_target) / power[:, None]
    valid_power = np.einsum("ij,ij->j", state.valid, state.valid)
    drop = coefficients * (2.0 * state.valid.T @ state.valid_target - coefficients * valid_power[:, None])
    risks: Array = np.mean(state.valid_target**2, axis=0) - drop / len(state.valid)
    return np.where(state.open[:, None], np.maximum(risks, 0.0), np.inf)


def _risks_now(state: _Residuals) -> Array:
    risks: Array = np.mean(state.valid_target**2, axis=0)
    return risks[None, :]


@dataclass(frozen=True)
class ValidationScore(_LeastSquares):
    """Eq. 1: the validation risk at the exact training optimum."""

    def empty(self, state: _Residuals) -> Scores:
        """Score the empty model."""
        return self._scores(_risks_now(state))

    def scores(self, state: _Residuals) -> Scores:
        """Score every feature that could be added."""
        return self._scores(_risks_after(state))

    def _scores(self, risks: Array) -> Scores:
        risk = risks.sum(axis=1)
        return Scores(risk, risk, np.zeros_like(risk))


@dataclass(frozen=True)
class Akaike(_LeastSquares):
    """The paper's validation AIC: 2p + n_V · R_V at the training optimum, p counting coefficients of all outputs.

    It is not scale free: R_V is in units of the training targets' variance, which is the paper's unit in Freedman's
    problem.
    """

    def empty(self, state: _Residuals) -> Scores:
        """Score the empty model."""
        return self._scores(_risks_now(state), state.chosen, len(state.valid))

    def scores(self, state: _Residuals) -> Scores:
        """Score every feature that could be added."""
        return self._scores(_risks_after(state), state.chosen + 1, len(state.valid))

    def _scores(self, risks: Array, size: int, rows: int) -> Scores:
        risk = risks.sum(axis=1)
        penalty = np.full_like(risk, 2.0 * size * risks.shape[1])
        return Scores(rows * risk + penalty, risk, penalty)


@dataclass(frozen=True)
class ExtendedBayes(_LeastSquares):
    """Extended BIC (Chen and Chen, 2008) of the least-squares fit to all rows, corrected for few rows.

    n Σ_j log(RSS_j / n) + (q·k·log n + 2γ log C(p, k)) · n / (n − k − 2) for k of p features and q outputs. It needs no
    validation part: the rows of both parts are pooled. The factor n / (n − k − 2) corrects the BIC for few rows
    (McQuarrie, 1999). Without it the criterion falls without limit as k approaches n, since the residuals of any n
    columns vanish.

    Attributes:
        gamma: weight γ of the prior over model sizes; 0 is the BIC, 1 the value for more features than rows.
    """

    gamma: float = 1.0

    def start(self, rows: Rows) -> _Residuals:
        """Return the state of the empty model on all rows."""
        return super().start(pool(rows))

    def empty(self, state: _Residuals) -> Scores:
        """Score the empty model."""
        return self._scores(_risks_now(state), state.chosen, state)

    def scores(self, state: _Residuals) -> Scores:
        """Score every feature that could be added."""
        return self._scores(_risks_after(state), state.chosen + 1, state)

    def _scores(self, risks: Array, size: int, state: _Residuals) -> Scores:
        (rows, features), outputs = state.train.shape, risks.shape[1]
        models = math.lgamma(features + 1) - math.lgamma(size + 1) - math.lgamma(features - size + 1)
        penalty = outputs * size * math.log(rows) + 2.0 * self.gamma * models
        spare = rows - size - 2
        if size:
            penalty *= rows / spare if spare > 0 else math.inf
        risk = risks.sum(axis=1)
        fit = rows * np.log(np.maximum(risks, _PERFECT)).sum(axis=1)
        return Scores(fit + penalty, risk, np.full_like(risk, penalty))
