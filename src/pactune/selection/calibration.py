"""Choose β without test data: the best bound among the values that select nothing from shuffled targets.

β sets the inverse temperature τ = βn_T of the Langevin dynamics. A small β is a hot chain: each feature then costs
about 1/τ of validation risk, and weak features are missed. A large β selects features by chance. Shuffling the target
makes every feature irrelevant, so the share of shuffles that select a feature estimates the probability of a false
selection. Among the β that keep this share low, the one whose path reaches the smallest Eq. 5 is taken. The paper tunes
τ in the same sense, "to improve the bound".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from pactune.selection.forward import forward_path
from pactune.selection.moments import Array, LangevinPath, SecondMoments, exact_moments
from pactune.selection.pac_bayes import PathScore
from pactune.selection.rows import Rows, location

__all__ = ["ShuffleCalibration", "calibrated_beta", "false_selection_rates", "theory_zeta"]

# Models (shuffles times features) computed at once; it limits the memory.
_BATCH_MODELS = 100_000


@dataclass(frozen=True)
class ShuffleCalibration:
    """Settings of `calibrated_beta`.

    Attributes:
        betas: values to choose from, in increasing order.
        shuffles: number of random permutations of the target.
        level: largest accepted share of shuffles that select something.
    """

    betas: tuple[float, ...] = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
    shuffles: int = 200
    level: float = 0.05


def theory_zeta(beta: float, learning_rate: float) -> float:
    """Return ζ = √(βη/4), the weight of the regularizer in the bound."""
    return math.sqrt(beta * learning_rate / 4.0)


def calibrated_beta(
    rows: Rows,
    path: LangevinPath,
    generator: np.random.Generator,
    *,
    max_features: int,
    patience: int | None = None,
    settings: ShuffleCalibration | None = None,
) -> float:
    """Choose β from the given rows.

    Candidates are the values before the first one whose rate of false selections on shuffled targets exceeds the level;
    the smallest value is always a candidate. The candidate whose forward path reaches the smallest objective is chosen,
    or the largest candidate if all select nothing.

    Args:
        rows: standardised rows.
        path: the dynamics; its temperature is replaced by that of each β.
        generator: draws the shuffles.
        max_features: length of the paths that are compared.
        patience: number of steps without a new minimum after which a path ends; None never ends it.
        settings: values to choose from, number of shuffles, level.

    Returns:
        The chosen β.
    """
    chosen = settings or ShuffleCalibration()
    rates = false_selection_rates(rows, path, generator, chosen)
    pairs = zip(chosen.betas, rates, strict=True)
    safe = [beta for beta, _ in takewhile(lambda pair: pair[1] <= chosen.level, pairs)] or [chosen.betas[0]]

    def smallest_objective(beta: float) -> float:
        heated = replace(path, inverse_temperature=beta * len(rows.train))
        criterion = PathScore(zeta=theory_zeta(beta, path.learning_rate), path=heated)
        steps = forward_path(rows, criterion, max_features=max_features, patience=patience)
        return min(step.objective for step in steps)

    return min(safe, key=lambda beta: (smallest_objective(beta), -beta))


def false_selection_rates(
    rows: Rows, path: LangevinPath, generator: np.random.Generator, settings: ShuffleCalibration
) -> Array:
    """Return, for each β, the share of shuffled targets for which a single feature beats the empty model."""
    features = int(rows.usable.sum())
    selected = np.zeros(len(settings.betas))
    per_batch = max(1, _BATCH_MODELS // max(features, 1))
    for first in range(0, settings.shuffles, per_batch):
        moments = shuffled_moments(rows, generator, min(per_batch, settings.shuffles - first))
        for i, beta in enumerate(settings.betas):
            selected[i] += np.sum(_best_single(moments, path, beta, len(rows.train)) < 0.0)
    return selected / settings.shuffles


def _best_single(moments: SecondMoments, path: LangevinPath, beta: float, n_train: int) -> Array:
    """Return, for each shuffle, the smallest Eq. 5 over all single features minus that of the empty model."""
    found = exact_moments(moments, replace(path, inverse_temperature=beta * n_train))
    objective = found.risk + theory_zeta(beta, path.learning_rate) * np.sqrt(found.incoherence)
    best: Array = objective.min(axis=-1, initial=np.inf)
    return best


def shuffled_moments(rows: Rows, generator: np.random.Generator, shuffles: int) -> SecondMoments:
    """Return the second moments of every single feature with shuffled targets, shape `(shuffles, p, 1, ·)`.

    The power of the target is set to zero, so that risks are relative to the empty model's, which differs by shuffle.
    """
    target = np.concatenate([rows.train_target, rows.valid_target])
    shuffled = np.stack([generator.permutation(target) for _ in range(shuffles)])
    n_train, outputs = len(rows.train), target.shape[1]
    centre, spread = location(shuffled[:, :n_train], shuffled)
    shuffled = (shuffled - centre[:, None]) / np.where(spread > 0.0, spread, 1.0)[:, None]
    train, valid = rows.train[:, rows.usable], rows.valid[:, rows.usable]
    train_cross = np.einsum("ip,siq->spq", train, shuffled[:, :n_train], optimize=True) / n_train
    valid_cross = np.einsum("ip,siq->spq", valid, shuffled[:, n_train:], optimize=True) / len(valid)
    return SecondMoments(
        train_gram=np.broadcast_to(np.mean(train**2, axis=0)[:, None, None], (shuffles, train.shape[1], 1, 1)),
        valid_gram=np.broadcast_to(np.mean(valid**2, axis=0)[:, None, None], (shuffles, train.shape[1], 1, 1)),
        train_cross=train_cross[:, :, None, :],
        valid_cross=valid_cross[:, :, None, :],
        valid_power=np.zeros(outputs),
    )
