"""Models and losses that do not compute with the tensors in place of their parameters are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import pactune as pt
from pactune.errors import SettingError


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


class Listed(Layers):
    """Keeps a parameter in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.first.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(x, self.weights[0], self.first.bias).tanh())


class Checkpointed(Layers):
    """Computes its activations again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(lambda x: self.first(x).tanh(), x, use_reentrant=False))


class Views(Layers):
    """Has a buffer that is a part of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("all", torch.zeros(2, 5))
        self.register_buffer("row", self.all[0])


class Remembered(Layers):
    """Writes into a buffer that a list keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.means = [self.mean]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        with torch.no_grad():
            self.means[0].mul_(0.9).add_(0.1 * hidden.detach().mean(0))
        return self.last(hidden.tanh())


def tied_by_data() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight.data = model[0].weight.data
    return model


def expanded() -> nn.Module:
    model = Layers()
    model.register_buffer("scale", torch.ones(1).expand(3))
    return model


def with_gradient_hook() -> nn.Module:
    model = Layers()
    model.first.weight.register_hook(lambda gradient: 0 * gradient)
    return model


class Normed(nn.Module):
    """The weight of the penalty, from a layer with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.norm = nn.Parameter(torch.ones(1)), nn.BatchNorm1d(1)

    def forward(self, losses: Tensor) -> Tensor:
        return (self.size * self.norm(losses.detach()[:, None])).sigmoid().squeeze(1)


def tuner(model: nn.Module, hyper: nn.Module | None = None, train_loss: Any = None) -> pt.Tuner:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 4, generator=generator), torch.arange(12) % 3
    hyper = pt.WeightDecay(model) if hyper is None else hyper
    plain = lambda model, batch, hyper: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    losses = {"train_loss": train_loss or plain, "valid_loss": plain}
    problem = pt.Problem(model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), **losses)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=2, outer=outer, objective=pt.PACBayes(0.1))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a list of parameters": (Listed, "reads first.weight from a list"),
    "checkpointing": (Checkpointed, "as torch.utils.checkpoint does"),
    "a buffer that is a view": (Views, "row and all share memory|all and row share memory"),
    "parameters tied by data": (tied_by_data, "0.weight and 2.weight share memory"),
    "an expanded buffer": (expanded, "the elements of scale share memory"),
    "a list of buffers": (Remembered, "the buffer mean of `model`"),
    "a gradient hook": (with_gradient_hook, "first.weight has gradient hooks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_step_would_not_follow_is_refused(case: str) -> None:
    make, words = REFUSED[case]
    torch.manual_seed(0)
    with pytest.raises(SettingError, match=words):
        tuner(make()).hypergradient()


@pytest.mark.parametrize(
    "chosen",
    [lambda p: p.requires_grad, lambda p: p.is_leaf, lambda p: isinstance(p, nn.Parameter)],
    ids=["requires_grad", "is_leaf", "type"],
)
def test_a_loss_that_chooses_parameters_by_their_properties_is_refused(chosen: Any) -> None:
    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        squares = sum(p.square().sum() for p in model.parameters() if chosen(p))
        return F.cross_entropy(model(batch[0]), batch[1]) + 0.1 * squares

    torch.manual_seed(0)
    with pytest.raises(SettingError, match="choose parameters by name"):
        tuner(Layers(), train_loss=loss).hypergradient()


def test_running_statistics_of_the_hyperparameters_are_refused() -> None:
    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return (hyper(losses) * losses).mean()

    hyper = Normed()
    with pytest.raises(SettingError, match=r"the buffer norm\.running_mean of `hyper`"):
        tuner(Layers(), hyper, loss).hypergradient()
    hyper.norm.eval()
    tuner(Layers(), hyper, loss).hypergradient()


def test_parts_of_one_memory_that_do_not_overlap_are_right() -> None:
    flat, model = torch.randn(23, generator=torch.Generator().manual_seed(0)), nn.Linear(4, 3)
    model.weight.data, model.bias.data = flat[:12].view(3, 4), flat[12:15]
    tuner(model).hypergradient()
