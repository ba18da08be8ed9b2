"""The PAC-Bayes criterion: Eq. 5 of every candidate, exactly or by Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pactune.selection.criteria import Scores
from pactune.selection.moments import Array, LangevinPath, PathMoments, SecondMoments, exact_moments
from pactune.selection.monte_carlo import langevin_chains
from pactune.selection.rows import Rows
from pactune.selection.step_size import UnstableStepError, bordered_eigenvalue_bound

__all__ = ["PathScore"]

Indices = NDArray[np.intp]

# Bytes of one batch of candidate matrices; it limits the memory when there are many features.
_BATCH_BYTES = 2**25
# Relative error of a computed eigenvalue; copies of one column lie exactly at the limit of stability.
_ROUNDING = 1e-9


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
class PathScore:
    """Eq. 5 under Langevin dynamics: E[R_V(θ_T)] + ζ √(Σ_t E‖Δ_t‖²).

    Attributes:
        zeta: ζ; the bound has ζ² = βη/4 (Eq. 5 with inverse temperature τ = βn_T).
        path: the dynamics.
        chains: number of Monte-Carlo chains, or 0 for the exact expectations.
        seed: the seed of the Monte-Carlo chains; every step of the selection draws other numbers.
    """

    zeta: float
    path: LangevinPath = field(default_factory=LangevinPath)
    chains: int = 0
    seed: int = 0

    def start(self, rows: Rows) -> _Grams:
        """Return the state of the empty model."""
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
        """Score every feature that could be added, in batches.

        Raises:
            UnstableStepError: the learning rate is too large for one of the features.
        """
        size = len(state.chosen) + 1
        risk = np.full(state.train_power.shape, np.inf)
        incoherence = np.zeros_like(risk)
        open_features = np.flatnonzero(state.rows.usable)
        open_features = open_features[~np.isin(open_features, state.chosen)]
        self._check_stable(state, open_features)
        per_candidate = 8 * size * (size + max(self.chains, 1) * state.train_cross.shape[1])
        for batch in _batches(open_features, max(1, _BATCH_BYTES // per_candidate)):
            found = self._moments(_bordered(state, batch), size)
            risk[batch], incoherence[batch] = found.risk, found.incoherence
        regularizer = self.zeta * np.sqrt(incoherence)
        return Scores(risk + regularizer, risk, regularizer)

    def extend(self, state: _Grams, feature: int) -> _Grams:
        """Return the state after adding a feature: one more row of each Gram matrix."""
        rows = state.rows
        train_row = rows.train[:, feature] @ rows.train / len(rows.train)
        valid_row = rows.valid[:, feature] @ rows.valid / len(rows.valid)
        return state._replace(
            chosen=[*state.chosen, feature],
            train_gram=np.vstack([state.train_gram, train_row]),
            valid_gram=np.vstack([state.valid_gram, valid_row]),
        )

    def _check_stable(self, state: _Grams, candidates: Indices) -> None:
        gram, borders = state.train_gram[:, state.chosen], state.train_gram[:, candidates]
        largest = bordered_eigenvalue_bound(gram, borders, state.train_power[candidates])
        if self.path.learning_rate * largest >= 2.0 * (1.0 - _ROUNDING):
            raise UnstableStepError(largest)

    def _moments(self, moments: SecondMoments, size: int) -> PathMoments:
        if not self.chains:
            return exact_moments(moments, self.path)
        generator = np.random.default_rng([self.seed, size])
        return langevin_chains(moments, self.path, chains=self.chains, generator=generator).mean


def _batches(features: Indices, size: int) -> list[Indices]:
    return [features[first : first + size] for first in range(0, len(features), size)]


def _bordered(state: _Grams, batch: Indices) -> SecondMoments:
    """Return the second moments of the chosen features plus each candidate of the batch as the last feature."""
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
    common = np.broadcast_to(cross[chosen], (len(batch), len(chosen), cross.shape[1]))
    return np.concatenate([common, cross[batch][:, None, :]], axis=1)
