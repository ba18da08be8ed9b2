"""The slow, obvious way to the moments of Langevin dynamics: iterate mean and covariance, one model at a time.

It ships so that anybody can check the closed form of `moments.py` on their own data; nothing else calls it.
"""

from __future__ import annotations

import numpy as np

from pactune.selection.moments import LangevinPath, PathMoments, SecondMoments

__all__ = ["iterated_moments"]


def iterated_moments(moments: SecondMoments, path: LangevinPath) -> PathMoments:
    """Iterate mean and covariance of θ_t for T steps and add up E‖Δ_t‖² along the way.

    Args:
        moments: second moments of one model (no leading axes).
        path: the dynamics.

    Returns:
        What `exact_moments` returns, at O(T k³).
    """
    features, outputs = moments.train_cross.shape
    step = np.eye(features) - path.learning_rate * moments.train_gram
    gap, offset = moments.train_gram - moments.valid_gram, moments.train_cross - moments.valid_cross
    mean = np.zeros((features, outputs))
    covariance = path.start_scale**2 * np.eye(features)
    incoherence = 0.0
    for _ in range(path.steps):
        incoherence += np.sum((gap @ mean - offset) ** 2) + outputs * np.trace(gap @ covariance @ gap)
        mean = step @ mean + path.learning_rate * moments.train_cross
        covariance = step @ covariance @ step.T + path.noise_variance * np.eye(features)
    risk = moments.valid_power.sum() - 2.0 * np.sum(moments.valid_cross * mean)
    risk = risk + np.sum(mean * (moments.valid_gram @ mean)) + outputs * np.trace(moments.valid_gram @ covariance)
    return PathMoments(np.asarray(risk), np.asarray(incoherence))
