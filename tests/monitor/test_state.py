"""What a monitor remembers: the sum, the counts, and nothing after a reset."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pactune as pt


def measured(steps: int = 3, **settings: object) -> pt.CoherenceMonitor:
    torch.manual_seed(0)
    monitor = pt.CoherenceMonitor(nn.Linear(2, 1), nn.functional.mse_loss, **settings)
    x, y = torch.randn(8, 2), torch.randn(8, 1)
    for _ in range(steps):
        monitor.step((x[:4], y[:4]), (x[4:], y[4:]))
    return monitor


def test_reset_begins_a_new_trajectory() -> None:
    monitor = measured()
    assert (monitor.steps, monitor.measured) == (3, 3)
    assert monitor.regularizer > 0
    monitor.reset()
    assert (monitor.steps, monitor.measured, monitor.regularizer) == (0, 0, 0.0)
    assert monitor.state_dict() == measured(0).state_dict()


def test_a_state_that_is_loaded_goes_on() -> None:
    monitor, other = measured(), measured(0)
    other.load_state_dict(monitor.state_dict())
    assert other.state_dict() == monitor.state_dict()
    assert other.regularizer == pytest.approx(monitor.regularizer, rel=1e-6)


@pytest.mark.parametrize("zeta", [0.0, 0.5])
def test_objective_is_the_risk_and_zeta_times_the_regularizer(zeta: float) -> None:
    monitor = measured()
    assert monitor.objective(1.5, zeta=zeta) == pytest.approx(1.5 + zeta * monitor.regularizer, rel=1e-12)


@pytest.mark.parametrize("zeta", [-0.1, float("inf"), float("nan"), "auto"])
def test_a_zeta_that_is_no_weight_is_refused(zeta: object) -> None:
    with pytest.raises(pt.SettingError, match="`zeta` must be"):
        measured(0).objective(1.5, zeta=zeta)
