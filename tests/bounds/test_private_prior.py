"""The settings of a private prior: each limit is where the theorem has it."""

from __future__ import annotations

import math

import pytest

import pactune as pt
from pactune.bounds import PrivatePrior

GOOD = {"epsilon": 0.2, "delta": 1e-6, "rows": 100}


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.5}, {"rows": 1}, {"c_beta": 0.0}, {"delta": 0.1999}, {"c1": 1e-9}, {"c2": 1e-9}]
)
def test_limits_that_are_allowed(change: dict[str, float]) -> None:
    PrivatePrior(**(GOOD | change))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.0},
        {"epsilon": 0.5001},
        {"epsilon": math.nan},
        {"delta": 0.0},
        {"delta": 0.2},
        {"delta": 0.3},
        {"rows": 0},
        {"c1": 0.0},
        {"c2": 0.0},
        {"c_beta": -1e-9},
    ],
)
def test_limits_that_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(pt.SettingError):
        PrivatePrior(**(GOOD | change))


def test_beta_is_its_formula() -> None:
    prior = PrivatePrior(**GOOD, c_beta=2.0)
    expected = math.exp(-100 * 0.2**2) + 2.0 * 100 * math.sqrt(1e-6 / 0.2)
    assert prior.beta == pytest.approx(expected, rel=1e-12)
