"""A λ that several names or modules share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pactune as pt
from tests.conftest import classes, make_tuner


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def in_one_module(model: nn.Module) -> nn.Module:
    decay = pt.WeightDecay(model, per="tensor", init=0.1)
    decay.values["2/weight"] = decay.values["0/weight"]
    return decay


def of_two_modules(model: nn.Module) -> nn.Module:
    first, second = pt.WeightDecay(model, per="tensor", init=0.1), pt.WeightDecay(model, init=0.1, positive=True)
    second.values["2/bias"] = nn.Parameter(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    third = pt.WeightDecay(model, per="element", init=0.3)
    third.values["2/bias"] = second.values["2/bias"]
    fourth = pt.WeightDecay(model, per="global", init=0.2)
    fourth.values["all"] = first.values["0/weight"]
    return nn.ModuleDict({"first": first, "second": second, "third": third, "fourth": fourth})


def one_module_twice(model: nn.Module) -> nn.Module:
    decay = pt.WeightDecay(model, per="tensor", init=0.1)
    return nn.ModuleList([nn.ModuleList([decay]), nn.ModuleList([decay])])


def of_decay_and_rates(model: nn.Module) -> nn.Module:
    decay, rates = pt.WeightDecay(model, per="tensor", init=0.1), pt.LearningRates(model)
    rates.values["0/weight"] = decay.values["2/weight"]
    rates.values["0/bias"] = rates.values["2/bias"]
    return nn.ModuleDict({"decay": decay, "rates": rates})


PATH, DRIFT = pt.PACBayes(0.5), pt.HyperDrift(0.5, default=0.0)


@pytest.mark.parametrize(
    ("share", "objective"),
    [
        *(
            (share, objective)
            for share in (in_one_module, of_two_modules, one_module_twice)
            for objective in (PATH, DRIFT)
        ),
        (of_decay_and_rates, PATH),
    ],
)
def test_a_shared_value_has_the_sum_of_the_derivatives(share: Any, objective: pt.Objective) -> None:
    model = network()
    hyper = share(model)
    data = {"train": classes(12, 1, torch.float64), "valid": classes(10, 2, torch.float64)}
    tuner = make_tuner(model, hyper, **data, objective=objective, hypergradient=pt.Truncated(4))
    check = pt.check_hypergradient(tuner)
    assert check.passed, check
