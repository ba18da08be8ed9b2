"""Langevin dynamics on a linear least-squares model, run chain by chain, as the paper does."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pactune.selection.moments import Array, LangevinPath, PathMoments, SecondMoments

__all__ = ["ChainMoments", "langevin_chains"]


class ChainMoments(NamedTuple):
    """The risk, the incoherence and the end of each chain.

    Attributes:
        risk: R_V(θ_T) of every chain, shape `(..., C)`.
        incoherence: Σ_{t<T} ‖Δ_t‖² of every chain, shape `(..., C)`.
        end: θ_T, shape `(..., C, k, q)`.
    """

    risk: Array
    incoherence: Array
    end: Array

    @property
    def mean(self) -> PathMoments:
        """Estimates of the expectations; both means are taken before the square root of Eq. 5."""
        return PathMoments(self.risk.mean(axis=-1), self.incoherence.mean(axis=-1))


def langevin_chains(
    moments: SecondMoments, path: LangevinPath, *, chains: int, generator: np.random.Generator
) -> ChainMoments:
    """Run C chains for every model.

    All models of one call use the same random numbers, so that their differences have less noise than their values.

    Args:
        moments: second moments of the models, batched over the leading axes.
        path: the dynamics.
        chains: C, chains per model.
        generator: draws the starts and the noise.

    Returns:
        Per-chain risk and incoherence.
    """
    shape = (chains, *moments.train_cross.shape[-2:])
    train_gram, valid_gram = moments.train_gram[..., None, :, :], moments.valid_gram[..., None, :, :]
    train_cross, valid_cross = moments.train_cross[..., None, :, :], moments.valid_cross[..., None, :, :]
    theta = np.broadcast_to(path.start_scale * generator.standard_normal(shape), (*train_gram.shape[:-3], *shape))
    incoherence = np.zeros(theta.shape[:-2])
    for _ in range(path.steps):
        train_gradient = train_gram @ theta - train_cross
        valid_gradient = valid_gram @ theta - valid_cross
        incoherence += np.sum((train_gradient - valid_gradient) ** 2, axis=(-2, -1))
        noise = math.sqrt(path.noise_variance) * generator.standard_normal(shape)
        theta = theta - path.learning_rate * train_gradient + noise
    risk = moments.valid_power.sum() + np.sum(theta * (valid_gram @ theta - 2.0 * valid_cross), axis=(-2, -1))
    return ChainMoments(risk, incoherence, theta)
