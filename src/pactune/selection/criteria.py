"""What forward selection minimises: each criterion scores every feature that could be added next.

A criterion is a frozen setting. Its state grows with the chosen features: `start` gives that of the empty model,
`extend` that of one feature more, `scores` judges all features that could follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pactune.selection.moments import Array, LangevinPath, PathMoments, SecondMoments, exact_moments
from pactune.selection.monte_carlo import langevin_chains
from pactune.selection.rows import Rows, pool

__all__ = ["Akaike", "Criterion", "ExtendedBayes", "PACBayes", "Scores", "ValidationRisk"]

Indices = NDArray[np.intp]

# Candidates whose part orthogonal to the chosen features is below this share of their variance add nothing.
_COLLINEAR = 1e-10
# Bytes of one batch of candidate matrices: keeps memory flat when there are many features.
_BATCH_BYTES = 2**25


class Scores(NamedTuple):
    """Objective of each candidate and its parts, each of shape `(p,)`; `inf` where the feature cannot be added."""

    objective: Array
    risk: Array
    regularizer: Array


class Criterion(Protocol):
    """What `forward_path` needs of a criterion."""

    def start(self, rows: Rows) -> Any:
        """Give the state of the empty model."""

    def empty(self, state: Any) -> Scores:
        """Score the empty model, as arrays of one entry."""

    def scores(self, state: Any) -> Scores:
        """Score every feature that could be added."""

    def extend(self, state: Any, feature: int) -> Any:
        """Give the state after adding a feature."""


class _Residuals(NamedTuple):
    """Columns and targets with the chosen features regressed out, by training coefficients, on both parts."""

    train: Array
    train_target: Array
    valid: Array
    valid_target: Array
    open: NDArray[np.bool_]
    chosen: int


class _LeastSquares:
    """State of the criteria that fit by least squares: O(n p) per step for all candidates together."""

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
    """Mean squared validation error, shape `(p, q)`, of each candidate added and refitted on the training rows."""
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
class ValidationRisk(_LeastSquares):
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
    """Extended BIC (Chen and Chen, 2008) of the least-squares fit to all rows, the strong classical baseline.

    n Σ_j log(RSS_j / n) + q·k·log n + 2γ log C(p, k) for k of p features and q outputs. It needs no validation part:
    the rows of both parts are pooled.

    Attributes:
        gamma: weight γ of the prior over model sizes; 0 is the BIC, 1 the value for more features than rows.
    """

    gamma: float = 1.0

    def start(self, rows: Rows) -> _Residuals:
        """Give the state of the empty model on all rows."""
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
        risk = risks.sum(axis=1)
        # A perfect fit would be worth minus infinity: rounding decides there, so the residual has a floor.
        fit = rows * np.log(np.maximum(risks, np.finfo(float).eps)).sum(axis=1)
        return Scores(fit + penalty, risk, np.full_like(risk, penalty))


class _Grams(NamedTuple):
    """Second moments between the chosen features (k of them) and all features."""

    rows: Rows
    chosen: list[int]
    train_gram: Array  # (k, p)
    valid_gram: Array  # (k, p)
    train_power: Array  # (p,)
    valid_power: Array  # (p,)
    train_cross: Array  # (p, q)
    valid_cross: Array  # (p, q)
    target_power: Array  # (q,)


@dataclass(frozen=True)
class PACBayes:
    """Eq. 5 under Langevin dynamics: E[R_V(θ_T)] + ζ √(Σ_t E‖Δ_t‖²).

    Attributes:
        zeta: ζ; the bound has ζ² = βη/4 (Eq. 5 with inverse temperature τ = βn_T).
        path: the dynamics.
        chains: number of Monte-Carlo chains, or 0 for the exact expectations.
        seed: of the Monte-Carlo chains; every step of the selection draws its own numbers from it.
    """

    zeta: float
    path: LangevinPath = field(default_factory=LangevinPath)
    chains: int = 0
    seed: int = 0

    def start(self, rows: Rows) -> _Grams:
        """Give the state of the empty model."""
        none = np.zeros((0, rows.train.shape[1]))
        n_train, n_valid = len(rows.train), len(rows.valid)
        return _Grams(
            rows=rows,
            chosen=[],
            train_gram=none,
            valid_gram=none,
            train_power=np.einsum("ij,ij->j", rows.train, rows.train) / n_train,
            valid_power=np.einsum("ij,ij->j", rows.valid, rows.valid) / n_valid,
            train_cross=rows.train.T @ rows.train_target / n_train,
            valid_cross=rows.valid.T @ rows.valid_target / n_valid,
            target_power=np.mean(rows.valid_target**2, axis=0),
        )

    def empty(self, state: _Grams) -> Scores:
        """Score the empty model, which has no parameters and hence no noise and no incoherence."""
        risk = np.atleast_1d(state.target_power.sum())
        return Scores(risk, risk, np.zeros(1))

    def scores(self, state: _Grams) -> Scores:
        """Score every feature that could be added, a batch of them at a time."""
        size = len(state.chosen) + 1
        risk = np.full(state.train_power.shape, np.inf)
        incoherence = np.zeros_like(risk)
        open_features = np.flatnonzero(state.rows.usable)
        open_features = open_features[~np.isin(open_features, state.chosen)]
        per_candidate = 8 * size * (size + max(self.chains, 1) * state.train_cross.shape[1])
        for batch in _batches(open_features, max(1, _BATCH_BYTES // per_candidate)):
            found = self._moments(_bordered(state, batch), size)
            risk[batch], incoherence[batch] = found.risk, found.incoherence
        regularizer = self.zeta * np.sqrt(incoherence)
        return Scores(risk + regularizer, risk, regularizer)

    def extend(self, state: _Grams, feature: int) -> _Grams:
        """Give the state after adding a feature: one row of each Gram matrix more."""
        rows = state.rows
        train_row = rows.train[:, feature] @ rows.train / len(rows.train)
        valid_row = rows.valid[:, feature] @ rows.valid / len(rows.valid)
        return state._replace(
            chosen=[*state.chosen, feature],
            train_gram=np.vstack([state.train_gram, train_row]),
            valid_gram=np.vstack([state.valid_gram, valid_row]),
        )

    def _moments(self, moments: SecondMoments, size: int) -> PathMoments:
        if not self.chains:
            return exact_moments(moments, self.path)
        generator = np.random.default_rng([self.seed, size])
        return langevin_chains(moments, self.path, chains=self.chains, generator=generator).mean


def _batches(features: Indices, size: int) -> list[Indices]:
    return [features[first : first + size] for first in range(0, len(features), size)]


def _bordered(state: _Grams, batch: Indices) -> SecondMoments:
    """Second moments of the chosen features with each candidate of the batch as the last one."""
    chosen = state.chosen
    return SecondMoments(
        _border(state.train_gram, state.train_power, chosen, batch),
        _border(state.valid_gram, state.valid_power, chosen, batch),
        _append(state.train_cross, chosen, batch),
        _append(state.valid_cross, chosen, batch),
        state.target_power,
    )


def _border(gram: Array, power: Array, chosen: list[int], batch: Indices) -> Array:
    size = len(chosen)
    bordered = np.empty((len(batch), size + 1, size + 1))
    bordered[:, :size, :size] = gram[:, chosen]
    bordered[:, :size, size] = bordered[:, size, :size] = gram[:, batch].T
    bordered[:, size, size] = power[batch]
    return bordered


def _append(cross: Array, chosen: list[int], batch: Indices) -> Array:
    shared = np.broadcast_to(cross[chosen], (len(batch), len(chosen), cross.shape[1]))
    return np.concatenate([shared, cross[batch][:, None, :]], axis=1)
