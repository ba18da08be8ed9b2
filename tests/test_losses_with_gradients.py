"""Losses that take gradients themselves, as gradient penalties do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt


def penalised(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    x = batch[0].clone().requires_grad_()
    output = model(x)
    (slope,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    return F.mse_loss(output, batch[1]) + hyper.strength.exp() * slope.square().mean()


def plain(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


class Strength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(-2.0, dtype=torch.float64))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()


def gradient_penalty(**settings: Any) -> pt.Tuner:
    torch.manual_seed(0)
    model, hyper, (x, y) = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(), Strength(), data()
    sides = {"train": (x[:6], y[:6]), "valid": (x[6:], y[6:])}
    problem = pt.Problem(model, hyper, train_loss=penalised, valid_loss=plain, **sides)
    outer = torch.optim.SGD(hyper.parameters(), lr=1.0)
    return pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=4, outer=outer, objective=pt.PACBayes(0.1), **settings)


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_gradient_penalty_is_tuned_and_evaluated(engine: str) -> None:
    tuner = gradient_penalty(engine=engine)
    model, hyper, x = tuner.problem.model, tuner.problem.hyper, data()[0]
    result = tuner.fit(3, progress=False)
    wanted = penalised(model, (x[:6], data()[1][:6]), hyper)
    assert result.rows[-1]["train_risk"] == pytest.approx(wanted.item(), rel=1e-12)


def test_its_hypergradient_is_that_of_finite_differences() -> None:
    check = pt.check_hypergradient(gradient_penalty(hypergradient=pt.Truncated(4), path_hypergradient=pt.Truncated(4)))
    assert check.passed, check
