"""Steps are run again on the way back, so a forward that cannot be replayed is refused."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.rounds.forwards import try_forwards
from pactune.trees import Params


class Noisy(nn.Module):
    """A linear model with noise on its inputs."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.linear, self.draw = nn.Linear(3, 1), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + 0.5 * self.draw())


def data(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator)


def tuner(model: nn.Module, hyper: nn.Module | None = None, **settings: Any) -> pt.Tuner:
    hyper = hyper if hyper is not None else pt.WeightDecay(model, init=0.1)
    losses = {"loss": F.mse_loss} | {k: settings.pop(k) for k in ("train_loss", "valid_loss") if k in settings}
    if "train_loss" in losses:
        losses.pop("loss")
    problem = pt.Problem(model, hyper, train=data(6), valid=data(5), **losses)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    settings = {"objective": pt.ValidationRisk(), "hypergradient": pt.Truncated(4), "inner_steps": 4} | settings
    return pt.Tuner(problem, inner=pt.SGD(0.1), outer=outer, **settings)


def own_torch() -> Callable[[], float]:
    generator = torch.Generator().manual_seed(0)
    return lambda: float(torch.rand((), generator=generator))


def counter() -> Callable[[], float]:
    count = itertools.count()
    return lambda: 0.1 * next(count)


UNKNOWN: dict[str, tuple[Callable[[], Callable[[], float]], str]] = {
    "random": (lambda: random.random, "draws random numbers from Python's `random`"),
    "np.random": (lambda: np.random.rand, "draws random numbers from NumPy's `np.random`"),
    "rarely used": (lambda: lambda: 0.0 * random.random(), "from Python's `random`"),
    "NumPy generator": (lambda: np.random.default_rng(0).random, "another result when it is called again"),
    "random.Random": (lambda: random.Random(0).random, "another result when it is called again"),
    "torch.Generator": (own_torch, "another result when it is called again"),
    "clock": (lambda: lambda: time.perf_counter() % 1, "another result when it is called again"),
    "count of calls": (counter, "another result when it is called again"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_forward_that_cannot_be_replayed_is_refused(name: str) -> None:
    make, message = UNKNOWN[name]
    with pytest.raises(pt.SettingError, match=message):
        tuner(Noisy(make())).hypergradient()


@pytest.mark.parametrize("side", ["training", "validation"])
def test_either_loss_is_looked_at(side: str) -> None:
    def plain(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    def noisy(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
        return plain(model, batch, hyper) * (1 + random.random())

    losses = (noisy, plain) if side == "training" else (plain, noisy)
    with pytest.raises(pt.SettingError, match=f"the {side} loss draws"):
        tuner(nn.Linear(3, 1), train_loss=losses[0], valid_loss=losses[1]).hypergradient()


class NoisyDecay(pt.WeightDecay):
    def penalty_gradient(self, params: Params) -> Params:
        return {name: g + torch.randn_like(g) for name, g in super().penalty_gradient(params).items()}


def test_a_hook_draws_nothing_at_all() -> None:
    model = nn.Linear(3, 1)
    with pytest.raises(pt.SettingError, match="`penalty` of a hyperparameter module gives another result"):
        tuner(model, NoisyDecay(model)).hypergradient()


def test_torchs_own_generators_are_replayed() -> None:
    """Dropout and torch.rand are seeded step by step: the segment length changes nothing."""

    def gradient(segment: int) -> list[Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(Noisy(lambda: float(torch.rand(()))), nn.Dropout(0.3))
        found = tuner(model, hypergradient=pt.Truncated(4, segment=segment))
        found.hypergradient()
        return [p.grad for p in found.problem.hyper.parameters() if p.grad is not None]

    assert all(torch.equal(a, b) for a, b in zip(gradient(1), gradient(4), strict=True))


def test_the_generators_of_python_and_numpy_are_left_as_they_were() -> None:
    before = random.getstate(), np.random.get_state()[1].copy()
    for draw in (random.random, np.random.rand):
        with pytest.raises(pt.SettingError):
            try_forwards(tuner(Noisy(draw)).problem)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])


class Energy(nn.Module):
    """A model that differentiates an energy by its own inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            inputs = x.detach().requires_grad_()
            energy = self.linear(inputs).square().sum()
            return torch.autograd.grad(energy, inputs, create_graph=True)[0]


def test_a_model_that_differentiates_by_its_inputs_has_a_plain_run() -> None:
    model = Energy()
    x, y = torch.randn(8, 3), torch.randint(0, 3, (8,))
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=(x[:4], y[:4]), valid=(x[4:], y[4:]), loss=F.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(problem, inner=pt.SGD(0.01), inner_steps=2, outer=outer, objective=pt.ValidationRisk())
    assert len(tuner.fit(2, progress=False).rows) == 2
