"""Predictions of the Langevin dynamics on Freedman's problem: in expectation, and chain by chain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pactune.paper.freedman.data import FreedmanData, held_out_error
from pactune.paper.intervals import mean_interval
from pactune.selection import ForwardSelector
from pactune.selection.moments import LangevinPath, exact_moments
from pactune.selection.monte_carlo import langevin_chains
from pactune.selection.rows import Rows, second_moments, standardize

__all__ = ["chain_curves", "expected_test_error"]


def _test_rows(data: FreedmanData) -> tuple[Rows, float]:
    """Return rows with the test part in the place of the validation part, and the variance of the training target."""
    train_target, test_target = data.train_target[:, None], data.test_target[:, None]
    return standardize(data.train, train_target, data.test, test_target), float(data.train_target.var())


def _dynamics(data: FreedmanData, selector: ForwardSelector) -> LangevinPath:
    inverse_temperature = selector.beta_ * len(data.train)
    return LangevinPath(selector.learning_rate_, selector.steps_, inverse_temperature=inverse_temperature)


def expected_test_error(data: FreedmanData, selector: ForwardSelector, subset: list[int]) -> float:
    """Return the mean squared test error of θ_T, averaged over the dynamics in closed form."""
    rows, variance = _test_rows(data)
    if not subset:
        return variance * float(np.mean(rows.valid_target**2))
    return variance * float(exact_moments(second_moments(rows, subset), _dynamics(data, selector)).risk)


def chain_curves(data: FreedmanData, selector: ForwardSelector) -> dict[str, Any]:
    """Return Eq. 5, test error and validation R² along a path chosen by Monte Carlo, with 95 % intervals over chains.

    Fresh chains measure the path. The chains that chose it would give too small an objective, since the smallest of 500
    noisy estimates is too small.

    Args:
        data: the problem.
        selector: fitted with `method="monte-carlo"`.

    Returns:
        The path and its intervals, the empty model first.
    """
    features = [int(feature) for feature in selector.path_["feature"][1:]]
    rows = standardize(data.train, data.train_target[:, None], data.valid, data.valid_target[:, None])
    models = [_measure(data, selector, rows, features[:size]) for size in range(1, len(features) + 1)]
    empty = float(np.mean(rows.valid_target**2))
    start = {
        "objective": mean_interval([empty]),
        "test_mse": mean_interval([held_out_error(data, [], refit=False)]),
        "validation_r2": mean_interval([1.0 - empty / float(rows.valid_target.var())]),
    }
    return {"chains": selector.chains, "features": features, "models": [start, *models]}


def _measure(data: FreedmanData, selector: ForwardSelector, rows: Rows, subset: list[int]) -> dict[str, Any]:
    path, generator = _dynamics(data, selector), np.random.default_rng([1, len(subset)])
    found = langevin_chains(second_moments(rows, subset), path, chains=selector.chains, generator=generator)
    mean = float(found.incoherence.mean())
    # Linearised in the chain's incoherence, so that the mean is Eq. 5 with the expectation inside the root.
    regularizer = selector.zeta_ * (math.sqrt(mean) + (found.incoherence - mean) / (2.0 * math.sqrt(mean)))
    tested, variance = _test_rows(data)
    residuals = tested.valid_target[None] - tested.valid[:, subset][None] @ found.end
    return {
        "objective": mean_interval(found.risk + regularizer),
        "test_mse": mean_interval(variance * np.mean(residuals**2, axis=(1, 2))),
        "validation_r2": mean_interval(1.0 - found.risk / float(rows.valid_target.var())),
    }
