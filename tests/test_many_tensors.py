"""Models with so many parameter tensors that one kernel runs for all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pactune as pt
from pactune import trees
from tests.conftest import classes, make_tuner


def deep() -> nn.Module:
    """Return a classifier with more tensors than one kernel per tensor is used for."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(4, 3)).double()
    assert len(list(model.parameters())) >= trees.MANY
    return model


@pytest.mark.parametrize(
    ("inner", "objective"),
    [
        (pt.SGD(0.3, clip=0.1), pt.PACBayes(0.6)),
        (pt.Adam(0.05, eps=1e-3, clip=0.1), pt.PACBayes(0.6)),
        (pt.SGD(0.3), pt.PACBayes(0.6, clip_train=0.1, clip_valid=0.1)),
    ],
    ids=["sgd", "adam", "objective"],
)
def test_clipped_gradients_have_the_derivative_of_finite_differences(
    inner: pt.Dynamics, objective: pt.Objective
) -> None:
    model = deep()
    hyper = pt.WeightDecay(model, per="tensor", init=0.1)
    data = {"train": classes(12, 1, torch.float64), "valid": classes(10, 2, torch.float64)}
    settings = {"inner": inner, "objective": objective, "hypergradient": pt.Truncated(4)}
    check = pt.check_hypergradient(make_tuner(model, hyper, **data, **settings))
    assert check.passed, check


def test_a_scaled_tree_has_a_derivative_by_the_factor() -> None:
    tree = {f"{i}": torch.full((2,), float(i), dtype=torch.float64) for i in range(trees.MANY)}
    factor = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda alpha: tuple(trees.scale(alpha, tree).values()), factor)
