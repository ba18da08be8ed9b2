"""A schedule may rest at 0; everything else but a finite positive number is refused at the step that gives it."""

from __future__ import annotations

import math

import pytest

import pactune as pt


@pytest.mark.parametrize("eta", [0.0, 0.1, 5])
def test_a_schedule_gives_the_rate_of_each_step(eta: float) -> None:
    dynamics = pt.SGD(lr=lambda step: eta if step == 3 else 1.0)
    assert dynamics.learning_rate(3) == eta
    assert dynamics.numbers(3)["lr"] == eta
    assert dynamics.learning_rate(4) == 1.0


@pytest.mark.parametrize("eta", [-0.1, -1e-300, math.inf, -math.inf, math.nan])
def test_a_schedule_that_leaves_the_rates_is_refused(eta: float) -> None:
    dynamics = pt.SGD(lr=lambda step: eta if step == 3 else 1.0)
    assert dynamics.learning_rate(2) == 1.0
    with pytest.raises(pt.SettingError, match=r"schedule gave .* at 3"):
        dynamics.learning_rate(3)
