"""Keep the Langevin dynamics stable on strongly correlated columns."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np

from pactune.errors import PactuneError
from pactune.selection.moments import Array, LangevinPath

__all__ = ["StepSizeWarning", "UnstableStepError", "bordered_eigenvalue_bound", "finer_path"]


class StepSizeWarning(UserWarning):
    """The learning rate was too large for the data and has been reduced."""


class UnstableStepError(PactuneError, ArithmeticError):
    """The learning rate is at or above 2/λ_max for a candidate model.

    Attributes:
        largest: the eigenvalue λ_max, or a bound on it.
    """

    def __init__(self, largest: float) -> None:
        super().__init__(f"`learning_rate` must be below 2/λ_max = {2.0 / largest:.4g}; reduce it and raise `steps`")
        self.largest = largest


def bordered_eigenvalue_bound(gram: Array, borders: Array, corners: Array) -> float:
    """Return an upper bound on the eigenvalues of a Gram matrix with one more row and column, over all candidates.

    With λ the largest eigenvalue of the matrix A, a candidate's column a and corner c, no eigenvalue of
    [[A, a], [aᵀ, c]] exceeds the larger one of [[λ, ‖a‖], [‖a‖, c]].

    Args:
        gram: A, shape `(k, k)`.
        borders: a of every candidate, shape `(k, p)`.
        corners: c of every candidate, shape `(p,)`.

    Example:
        >>> bordered_eigenvalue_bound(np.ones((1, 1)), np.array([[0.0, 0.5]]), np.ones(2))
        1.5
    """
    if not len(corners):
        return 0.0
    largest = float(np.linalg.eigvalsh(gram)[-1]) if len(gram) else 0.0
    middle, half = (largest + corners) / 2.0, (largest - corners) / 2.0
    return float(np.max(middle + np.sqrt(half**2 + np.einsum("kp,kp->p", borders, borders))))


def finer_path(path: LangevinPath, largest: float, max_features: int) -> LangevinPath:
    """Return the dynamics with a smaller η, stable for every model, and a larger T with the same ηT; issue a warning.

    Standardised columns give a Gram matrix of trace k, so no model of k features has a larger eigenvalue than k. The
    Langevin diffusion, its horizon, its temperature and η Σ_t ‖Δ_t‖² stay the same, with smaller time steps.

    Args:
        path: the chosen dynamics.
        largest: the eigenvalue for which it is unstable.
        max_features: size of the largest model.
    """
    steps = math.ceil(path.steps * path.learning_rate * max_features)
    finer = replace(path, learning_rate=path.learning_rate * path.steps / steps, steps=steps)
    warnings.warn(
        f"`learning_rate` must be below 2/λ_max = {2.0 / largest:.4g} for columns as correlated as these, got "
        f"{path.learning_rate:g}; using {finer.learning_rate:.4g} with {steps} steps instead of {path.steps}",
        StepSizeWarning,
        stacklevel=3,
    )
    return finer
