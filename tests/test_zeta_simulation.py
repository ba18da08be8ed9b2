"""The batched simulation behind the choice of ζ is a second implementation of Eq. 5: hold the library to it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional

import pactune as pt
from pactune.objectives import RelativeZeta
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.listeners import Listeners

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "zeta"
FEATURES, OUTER_STEPS, INNER_STEPS, LR = 31, 4, 25, 1e-3


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return importlib.import_module("simulate_runs")


def _data(simulation: ModuleType):
    """One draw of 100 images with a constant last feature, and its first 10 images as a test set."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 100, FEATURES + 1, generator=generator)
    x[..., -1] = 1.0
    y = torch.randint(0, 10, (1, 100), generator=generator)
    return simulation.Data(x, y, x[0, :10], y[0, :10], torch.full((1, 10), 0.1))


def _library(data, theta: torch.Tensor, zeta: float | RelativeZeta) -> tuple[pt.Result, nn.Linear, pt.WeightDecay]:
    model = nn.Linear(FEATURES, 10)
    with torch.no_grad():
        model.weight.copy_(theta[0, :, :FEATURES])
        model.bias.copy_(theta[0, :, FEATURES])
    hyper = pt.WeightDecay(model)
    x, y = data.x[0, :, :FEATURES], data.y[0]
    problem = pt.Problem(model, hyper, train=(x[:50], y[:50]), valid=(x[50:], y[50:]), loss=functional.cross_entropy)
    tuner = pt.Tuner(
        problem,
        inner=pt.Adam(lr=LR),
        inner_steps=INNER_STEPS,
        outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2),
        objective=pt.PACBayes(zeta=0.0),
    )
    result = Fit(tuner.outer_run, FitSettings(OUTER_STEPS), zeta, Listeners(tuner, ())).result()
    return result, model, hyper


@pytest.mark.parametrize(("spec", "zeta"), [("0", 0.0), ("1e-2", 1e-2), ("r0.1", RelativeZeta(0.1))])
def test_library_and_simulation_agree(simulation: ModuleType, spec: str, zeta: float | RelativeZeta) -> None:
    data = _data(simulation)
    theta = simulation.initialise(data, FEATURES, [7])
    setting = simulation.Setting(1.0, LR, INNER_STEPS)
    simulator = simulation.Simulator(data, simulation.list_runs(f"full:{spec}"), theta, setting)
    for _ in range(OUTER_STEPS):
        record, _, _ = simulator.outer_step()
    names = dict(zip(simulation.METRICS, record[0, 0].tolist(), strict=True))
    result, model, _ = _library(data, theta, zeta)
    last = result.rows[-1]
    # float32 on both sides: 100 Adam steps leave differences of about 1e-6 relative
    assert last["valid_risk"] == pytest.approx(names["valid_loss"], rel=1e-4)
    assert last["regularizer"] ** 2 == pytest.approx(names["y"], rel=1e-4)
    simulated = simulator.state.theta[0, :, :FEATURES]
    assert torch.allclose(model.weight, simulated, rtol=1e-3, atol=1e-5)
