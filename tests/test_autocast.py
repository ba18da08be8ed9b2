"""Runs inside `torch.autocast`, whose cache keeps the cast of every weight until the outermost block ends."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt
from tests.conftest import classes

X, Y = classes(24, 0)
STEPS = 30


class Watched(nn.Linear):
    """A linear layer that notes its weights, without keeping them alive, and if autocast has a cache."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.seen: list[weakref.ref[Tensor]] = []
        self.cached: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(weakref.ref(self.weight))
        self.cached.append(torch.is_autocast_cache_enabled())
        return super().forward(x)

    @property
    def alive(self) -> int:
        gc.collect()
        return len({id(weight) for known in self.seen if (weight := known()) is not None})


def problem_of(model: nn.Module) -> pt.Problem:
    return pt.Problem(model, pt.WeightDecay(model), train=(X[:12], Y[:12]), valid=(X[12:], Y[12:]), loss=cross_entropy)


def tuner_of(model: nn.Module) -> pt.Tuner:
    problem = problem_of(model)
    outer = torch.optim.SGD(problem.hyper.parameters(), lr=0.1)
    return pt.Tuner(
        problem, inner=pt.SGD(0.1), inner_steps=STEPS, outer=outer, objective=pt.PACBayes(0.1), engine="eager"
    )


def test_an_outer_autocast_keeps_no_weights_of_past_steps() -> None:
    model = Watched()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tuner_of(model).hypergradient()
        assert torch.is_autocast_cache_enabled()
        assert model.alive < 10  # those of the model and of the last step
    assert len(model.seen) > STEPS


def test_a_model_may_cache_the_casts_of_its_own_autocast() -> None:
    model = Watched()
    tuner_of(model).hypergradient()
    assert all(model.cached)


def test_an_evaluation_casts_weights_that_have_changed() -> None:
    model = nn.Linear(4, 3)
    problem = problem_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        problem.evaluate(problem.train)
        with torch.no_grad():
            model.weight.fill_(0.0)
            model.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
        inside = problem.evaluate(problem.train).risk
    wanted = float(cross_entropy(torch.tensor([[0.0, 1.0, 2.0]]).expand(12, 3), Y[:12]))
    assert abs(inside - wanted) < 0.02  # bfloat16 has three digits
