"""Keeping the Langevin dynamics stable on columns that are strongly correlated."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
from scipy.sparse.linalg import LinearOperator, svds

from pactune.selection.moments import Array, LangevinPath

__all__ = ["StepSizeWarning", "largest_eigenvalue_bound", "stable_path"]

# Below this many rows or columns a dense decomposition is quicker than iterating.
_DENSE = 600
# Share of the stability limit 2/λ_max that a shrunken learning rate uses.
_SAFE_SHARE = 0.5


class StepSizeWarning(UserWarning):
    """The learning rate was too large for the data and has been reduced."""


def largest_eigenvalue_bound(columns: Array, max_features: int) -> float:
    """Bound λ_max of the Gram matrix of any `max_features` standardised columns.

    A subset's Gram has trace at most `max_features` (unit diagonal) and, by interlacing, no eigenvalue above the full
    Gram's largest.
    """
    trace = float(min(max_features, columns.shape[1]))
    if trace <= 1.0 or not np.any(columns):
        return trace
    return min(trace, _spectral_norm(columns) ** 2 / len(columns))


def stable_path(path: LangevinPath, columns: Array, max_features: int) -> LangevinPath:
    """Reduce η until ηλ_max < 2 for every model the selection can meet, and lengthen T so that ηT stays.

    The Langevin diffusion, its horizon, its temperature and η Σ_t ‖Δ_t‖² are then what they were, on a finer clock.

    Args:
        path: the dynamics asked for.
        columns: standardised training columns, shape `(n_T, p)`.
        max_features: size of the largest model.

    Returns:
        `path` itself where it is stable, else the finer one, with a `StepSizeWarning`.
    """
    if path.learning_rate * min(max_features, columns.shape[1]) < 2.0:  # λ_max is at most the trace
        return path
    largest = largest_eigenvalue_bound(columns, max_features)
    if path.learning_rate * largest < 2.0:
        return path
    steps = math.ceil(path.steps * path.learning_rate * largest / (2.0 * _SAFE_SHARE))
    finer = replace(path, learning_rate=path.learning_rate * path.steps / steps, steps=steps)
    warnings.warn(
        f"`learning_rate` must be below 2/λ_max = {2.0 / largest:.4g} for correlated columns like these, got "
        f"{path.learning_rate:g}; using {finer.learning_rate:.4g} with {steps} steps instead of {path.steps}",
        StepSizeWarning,
        stacklevel=3,
    )
    return finer


def _spectral_norm(columns: Array) -> float:
    if min(columns.shape) <= _DENSE:
        small = columns @ columns.T if len(columns) < columns.shape[1] else columns.T @ columns
        return math.sqrt(max(float(np.linalg.eigvalsh(small)[-1]), 0.0))
    start = np.ones(min(columns.shape))  # fixed, so that the same data give the same answer
    operator = LinearOperator(columns.shape, matvec=columns.__matmul__, rmatvec=columns.T.__matmul__, dtype=float)
    return float(svds(operator, k=1, v0=start, return_singular_vectors=False)[0])
