"""On a CUDA device, folds, the refit and tasks give what the eager engine gives one by one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import pactune as pt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MODELS = {
    "linear": lambda: nn.Linear(16, 3),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3)
    ),
}


def folded(model: str, engine: str) -> pt.Tuner:
    torch.manual_seed(0)
    net = MODELS[model]().double().cuda()
    hyper = pt.WeightDecay(net)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(43, 16, generator=draw, dtype=torch.float64).cuda()
    y = torch.randint(0, 3, (43,), generator=draw).cuda()
    problem = pt.Problem(net, hyper, data=(x, y), folds=4, loss=cross_entropy)
    settings: dict[str, Any] = {"inner": pt.Adam(lr=1e-2), "inner_steps": 30, "objective": pt.PACBayes(0.05)}
    return pt.Tuner(problem, outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2), engine=engine, **settings)


def numbers(result: pt.Result) -> torch.Tensor:
    return torch.tensor(result.history.drop(columns="seconds").values)


@pytest.mark.parametrize("model", MODELS)
def test_captured_folds_are_the_eager_ones(model: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pactune"):
        captured = folded(model, "auto").fit(3, progress=False)
    assert not caplog.messages
    eager = folded(model, "eager").fit(3, progress=False)
    torch.testing.assert_close(numbers(captured), numbers(eager), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(captured.out_of_fold, eager.out_of_fold, rtol=1e-7, atol=1e-9)


def test_the_held_out_step_is_the_eager_one() -> None:
    found = [folded("linear", engine).fit(3, keep="held-out", progress=False) for engine in ("auto", "eager")]
    assert found[0].kept_step == found[1].kept_step
    scores = [torch.tensor([row["score"] for row in one.trials]) for one in found]
    torch.testing.assert_close(*scores, rtol=1e-7, atol=1e-9)


def tasks(engine: str) -> list[float]:
    def draw(generator: torch.Generator) -> Any:
        x = torch.randn(20, 16, generator=generator, dtype=torch.float64).cuda()
        slope = torch.randn(16, 1, generator=generator, dtype=torch.float64).cuda()
        return (x[:10], x[:10] @ slope), (x[10:], x[10:] @ slope)

    torch.manual_seed(0)
    model = nn.Linear(16, 1).double().cuda()
    hyper = pt.WeightDecay(model, init=0.1)
    problem = pt.Problem(model, hyper, tasks=draw, tasks_per_step=3, loss=mse_loss)
    tuner = pt.Tuner(
        problem,
        inner=pt.SGD(1e-2),
        inner_steps=20,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.PACBayes(0.01),
        restart=True,
        engine=engine,
    )
    totals = []
    for _ in range(4):
        totals.append(tuner.hypergradient().total)
        tuner.outer.step()
    return totals


def test_captured_tasks_are_the_eager_ones() -> None:
    assert tasks("auto") == pytest.approx(tasks("eager"), rel=1e-7)
