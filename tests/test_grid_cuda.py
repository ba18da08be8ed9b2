"""On a CUDA device, a grid at once and the folds of `zeta="auto"` give what the eager engine gives one by one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

GRID = {"zeta": [0.0, 0.05], "seed": [0, 1]}
MODELS = {
    "linear": lambda: nn.Linear(6, 3),
    "MLP": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
}


def build(model: str, zeta: Any, seed: int, engine: str = "auto") -> pt.Tuner:
    torch.manual_seed(seed)
    net = MODELS[model]().double().cuda()
    hyper = pt.WeightDecay(net)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 6, generator=draw, dtype=torch.float64).cuda()
    y = torch.randint(0, 3, (40,), generator=draw).cuda()
    problem = pt.Problem(net, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=cross_entropy)
    settings = {"inner": pt.Adam(lr=1e-2), "inner_steps": 30, "objective": pt.PACBayes(zeta=zeta), "engine": engine}
    return pt.Tuner(problem, outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2), seed=seed, **settings)


def numbers(result: pt.Result) -> torch.Tensor:
    return torch.tensor(result.history.drop(columns="seconds").values)


@pytest.mark.parametrize("model", MODELS)
def test_grid_at_once_is_eager_one_by_one(model: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pactune"):
        grid = pt.fit_grid(lambda **cell: build(model, **cell), GRID, outer_steps=3, progress=False)
    assert not caplog.messages  # stacked and captured, neither of which was given up
    for cell, result in zip(grid.cells, grid.results, strict=True):
        alone = build(model, **cell, engine="eager").fit(3, progress=False)
        torch.testing.assert_close(numbers(result), numbers(alone), rtol=1e-7, atol=1e-9)


def test_auto_zeta_is_the_eager_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pactune"):
        captured = build("linear", "auto", 0).fit(3, progress=False)
    assert not caplog.messages
    eager = build("linear", "auto", 0, engine="eager").fit(3, progress=False)
    assert (captured.zeta, captured.kept_run, captured.kept_step) == pytest.approx(
        (eager.zeta, eager.kept_run, eager.kept_step)
    )
    scores = [torch.tensor([[row["score"], row["error"]] for row in one.trials]) for one in (captured, eager)]
    torch.testing.assert_close(*scores, rtol=1e-7, atol=1e-9)
