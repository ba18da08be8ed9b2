"""Dataset distillation with a learned rate: ten images and a step size, against `higher`.

    python benchmarks/peers/dataset_distillation.py

An MLP starts at fixed parameters and takes ten steps on ten images, one per class; images and step size are tuned on
200 images of MNIST.
"""

from __future__ import annotations

from typing import Any

import torch
from comparing import Comparison, Way, peer
from images import digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import pactune as pt

VALID, STEPS, LR, OUTER_LR = 200, 10, 0.1, 1e-2
X, Y = digits(VALID)
LABELS = torch.arange(10)


class Images(nn.Module):
    """One image per class, and the logarithm of a factor on the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.values = nn.Parameter(torch.rand(10, 784, generator=generator))
        self.log_rate = nn.Parameter(torch.zeros(()))

    def learning_rates(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict.fromkeys(params, self.log_rate.exp())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def train_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(hyper.values), LABELS)


def valid_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def tuner(engine: str) -> pt.Tuner:
    model, hyper = network(), Images()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    problem = pt.Problem(model, hyper, valid=(X, Y), train_loss=train_loss, valid_loss=valid_loss)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.Windowed(STEPS), "restart": True}
    settings |= {"initial": lambda _: start, "engine": engine}
    return pt.Tuner(problem, inner=pt.SGD(lr=LR), inner_steps=STEPS, outer=outer, **settings)


def by_hand() -> Way:
    model, hyper = network(), Images()
    start = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)

    def outer_step() -> None:
        params, rate = start, LR * hyper.log_rate.exp()
        for _ in range(STEPS):
            loss = F.cross_entropy(functional_call(model, params, (hyper.values,)), LABELS)
            found = torch.autograd.grad(loss, list(params.values()), create_graph=True)
            params = {name: p - rate * g for (name, p), g in zip(params.items(), found, strict=True)}
        outer.zero_grad()
        F.cross_entropy(functional_call(model, params, (X,)), Y).backward(inputs=list(hyper.parameters()))
        outer.step()

    return Way(outer_step, list(hyper.parameters()))


def by_higher() -> Way:
    import higher

    model, hyper = network(), Images()
    inner = torch.optim.SGD(model.parameters(), lr=LR)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)

    def outer_step() -> None:
        override = {"lr": [LR * hyper.log_rate.exp()]}
        with higher.innerloop_ctx(model, inner, override=override) as (net, moves):
            for _ in range(STEPS):
                moves.step(train_loss(net, (), hyper))
            outer.zero_grad()
            F.cross_entropy(net(X), Y).backward()
        outer.step()

    return Way(outer_step, list(hyper.parameters()))


if __name__ == "__main__":
    peers = {"higher": peer(by_higher, "higher"), "by hand": peer(by_hand)}
    Comparison("dataset_distillation", tuner, peers, outer_steps=10, bars={"higher": 1.1}).main()
