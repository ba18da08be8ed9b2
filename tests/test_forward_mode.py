"""Forward mode on every structure of a batch and every layout of λ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.nested import map_tensors


@dataclass
class Row:
    target: Tensor
    inputs: Tensor


def weighted(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    inputs, target, weights = batch
    return weights.mean() * F.mse_loss(model(inputs), target)


def unnamed(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.mse_loss(model(batch["a"]), batch["b"])


class Root(nn.Module):
    """A linear model of the root of its inputs, whose derivative is infinite where an input is 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.sqrt())


draw = torch.Generator().manual_seed(0)
X, Y, W = (torch.rand(20, width, generator=draw, dtype=torch.float64) for width in (4, 3, 1))
X[0] = 0.0


@pytest.mark.parametrize(
    ("rows", "losses"),
    [
        ((X, Y), {"loss": F.mse_loss}),
        ([X, Y], {"loss": F.mse_loss}),
        ({"input": X, "labels": Y}, {"loss": F.mse_loss}),
        ({"labels": Y, "input": X}, {"loss": F.mse_loss}),
        (Row(Y, X), {"loss": F.mse_loss}),
        ((X, Y, W), {"train_loss": weighted, "valid_loss": weighted}),
        ({"a": X + 1, "b": Y}, {"train_loss": unnamed, "valid_loss": unnamed}),
    ],
    ids=["tuple", "list", "mapping", "target first", "dataclass", "weights last", "no names"],
)
def test_forward_mode_finds_the_target_of_every_batch(rows: Any, losses: dict[str, Any]) -> None:
    model = Root()
    train, valid = (map_tensors(rows, lambda part, half=half: part[half]) for half in (slice(10), slice(10, None)))
    assert_exact(model, pt.WeightDecay(model, per="tensor", init=0.1), train=train, valid=valid, **losses)


def test_forward_mode_takes_hyperparameters_of_every_layout() -> None:
    """The decays of a channels_last model are not contiguous."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 2, 2), nn.Flatten()).double().to(memory_format=torch.channels_last)
    images, targets = torch.rand(20, 2, 3, 3, generator=draw).double(), torch.rand(20, 8, generator=draw).double()
    hyper = pt.WeightDecay(model)
    assert not hyper.values["0/weight"].is_contiguous()
    data = {"train": (images[:10], targets[:10]), "valid": (images[10:], targets[10:])}
    assert_exact(model, hyper, **data, loss=F.mse_loss)


def assert_exact(model: nn.Module, hyper: nn.Module, **data: Any) -> None:
    tuner = pt.Tuner(
        pt.Problem(model, hyper, **data),
        inner=pt.SGD(lr=0.1),
        inner_steps=3,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.PACBayes(0.1),
        hypergradient=pt.ForwardMode(),
        path_hypergradient=pt.ForwardMode(),
    )
    check = pt.check_hypergradient(tuner)
    assert check.passed, check
