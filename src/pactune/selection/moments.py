"""Exact moments of Langevin dynamics on a linear least-squares model.

With a Gaussian start and quadratic risks the iterate θ_t is Gaussian, so the two terms of Eq. 5 have closed forms. The
tests compare them with a slow iteration over the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LangevinPath", "PathMoments", "SecondMoments", "exact_moments"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LangevinPath:
    """T steps of θ ← θ − η ∇R_T(θ) + √(2η/τ) ξ from θ_0 ~ N(0, s²I), with R_T half the mean squared error.

    Attributes:
        learning_rate: η. The dynamics is stable while η λ_max < 2 for the largest eigenvalue of the training Gram.
        steps: T.
        inverse_temperature: τ; `inf` is plain gradient descent.
        start_scale: s, the standard deviation of each initial coefficient.
    """

    learning_rate: float = 0.1
    steps: int = 50
    inverse_temperature: float = math.inf
    start_scale: float = 1.0

    @property
    def noise_variance(self) -> float:
        """The variance 2η/τ that one step adds to each coefficient."""
        return 2.0 * self.learning_rate / self.inverse_temperature


class SecondMoments(NamedTuple):
    """The second moments of the data of linear models with k features and q outputs; the risks depend on nothing else.

    Leading axes, written `...`, run over models; the first four fields have the same leading axes.

    Attributes:
        train_gram: X_TᵀX_T / n_T, shape `(..., k, k)`.
        valid_gram: X_VᵀX_V / n_V, shape `(..., k, k)`.
        train_cross: X_Tᵀy_T / n_T, shape `(..., k, q)`.
        valid_cross: X_Vᵀy_V / n_V, shape `(..., k, q)`.
        valid_power: mean of y_V², shape `(q,)`: the validation risk of θ = 0 for each output.
    """

    train_gram: Array
    valid_gram: Array
    train_cross: Array
    valid_cross: Array
    valid_power: Array


class PathMoments(NamedTuple):
    """The two expectations of Eq. 5, each of shape `(...)`.

    Attributes:
        risk: E[R_V(θ_T)], the mean squared validation error summed over outputs.
        incoherence: Σ_{t<T} E‖∇R_T(θ_t) − ∇R_V(θ_t)‖², with both gradients of half the mean squared error.
    """

    risk: Array
    incoherence: Array


class _PowerSums(NamedTuple):
    """Elementwise sums of powers of ρ after n steps, with S_t = Σ_{s<t} ρ^s."""

    power: Array  # ρ^n
    total: Array  # S_n
    running: Array  # Σ_{t<n} S_t
    pairs: Array  # Σ_{t<n} S_t S_tᵀ, shape (..., k, k)


def exact_moments(moments: SecondMoments, path: LangevinPath) -> PathMoments:
    """Compute E[R_V(θ_T)] and Σ E‖Δ_t‖² in closed form: one eigendecomposition per model, O(log T) in the steps.

    In the eigenbasis of the training Gram, with eigenvalues λ, ρ = 1 − ηλ and S_t = Σ_{s<t} ρ^s, the iterate has mean
    η S_t ∘ b_T and diagonal covariance s²ρ^{2t} + (2η/τ) Σ_{s<t} ρ^{2s}; Δ_t = (Σ_T − Σ_V) θ_t − (b_T − b_V) is affine
    in it. The sums over t are computed by doubling, which has no small denominators, so zero eigenvalues (collinear
    columns) need no special case.

    Args:
        moments: second moments of the models, batched over the leading axes.
        path: the dynamics.

    Returns:
        The expectations, one per model.

    Example:
        >>> one = np.ones((1, 1))
        >>> data = SecondMoments(one, one, 0.5 * one, 0.5 * one, np.ones(1))
        >>> exact = exact_moments(data, LangevinPath(steps=200))  # no noise: ends at the optimum θ = 0.5
        >>> round(float(exact.risk), 6), float(exact.incoherence)
        (0.75, 0.0)
    """
    rate, outputs = path.learning_rate, moments.train_cross.shape[-1]
    eigenvalues, basis = _eigenbasis(moments.train_gram)
    transposed = np.swapaxes(basis, -1, -2)
    train_cross, valid_cross = transposed @ moments.train_cross, transposed @ moments.valid_cross
    valid_gram = transposed @ moments.valid_gram @ basis
    rho = 1.0 - rate * eigenvalues
    sums = _power_sums(rho, path.steps)
    variance_at_end, variance_summed = _variances(rho, path)

    gap = -valid_gram
    np.einsum("...ii->...i", gap)[...] += eigenvalues
    gap_squared = gap @ gap
    offset = train_cross - valid_cross
    mean_at_end = rate * sums.total[..., None] * train_cross
    mean_summed = rate * sums.running[..., None] * train_cross
    mean_products = rate**2 * sums.pairs * (train_cross @ np.swapaxes(train_cross, -1, -2))

    risk = moments.valid_power.sum() - 2.0 * _dot(valid_cross, mean_at_end)
    risk = risk + _dot(mean_at_end, valid_gram @ mean_at_end) + outputs * _trace(valid_gram, variance_at_end)
    incoherence = _dot(gap_squared, mean_products) - 2.0 * _dot(gap @ offset, mean_summed)
    incoherence = incoherence + path.steps * _dot(offset, offset) + outputs * _trace(gap_squared, variance_summed)
    return PathMoments(risk, np.maximum(incoherence, 0.0))


def _eigenbasis(gram: Array) -> tuple[Array, Array]:
    if gram.shape[-1] == 1:  # LAPACK's call overhead would dominate
        return gram[..., 0], np.ones_like(gram)
    eigenvalues, basis = np.linalg.eigh(gram)
    return np.maximum(eigenvalues, 0.0), basis


def _variances(rho: Array, path: LangevinPath) -> tuple[Array, Array]:
    """Return the variance of θ_T and the sum of the variances of θ_0 … θ_{T−1}, per eigendirection."""
    squares, start = rho**2, path.start_scale**2
    power, total, running = np.ones_like(rho), np.zeros_like(rho), np.zeros_like(rho)
    for count, odd in _doublings(path.steps):
        running, total, power = running + count * total + power * running, total + power * total, power**2
        if odd:
            running, total, power = running + total, 1.0 + squares * total, squares * power
    return start * power + path.noise_variance * total, start * total + path.noise_variance * running


def _power_sums(rho: Array, steps: int) -> _PowerSums:
    """Sum powers of ρ over `steps` steps by doubling: S_{n+u} = S_n + ρ^n S_u."""
    power, total, running = np.ones_like(rho), np.zeros_like(rho), np.zeros_like(rho)
    pairs = np.zeros((*rho.shape, rho.shape[-1]))
    for count, odd in _doublings(steps):
        shifted = power * running
        half = 0.5 * count * total + shifted
        crossed = total[..., :, None] * half[..., None, :]
        pairs *= 1.0 + power[..., :, None] * power[..., None, :]
        pairs += crossed
        pairs += np.swapaxes(crossed, -1, -2)
        running, total, power = running + count * total + shifted, total + power * total, power**2
        if odd:
            pairs += total[..., :, None] * total[..., None, :]
            running, total, power = running + total, 1.0 + rho * total, rho * power
    return _PowerSums(power, total, running, pairs)


def _doublings(steps: int) -> list[tuple[int, bool]]:
    """Return how to build `steps` from 0: each entry (count, odd) doubles the count and then adds a step if odd."""
    bits = bin(steps)[2:]
    return [(int(bits[:i] or "0", 2), bit == "1") for i, bit in enumerate(bits)]


def _dot(left: Array, right: Array) -> Array:
    product: Array = np.einsum("...ij,...ij->...", left, right)
    return product


def _trace(matrix: Array, diagonal: Array) -> Array:
    """Return the trace of `matrix @ diag(diagonal)`."""
    product: Array = np.einsum("...ii,...i->...", matrix, diagonal)
    return product
