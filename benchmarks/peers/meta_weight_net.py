"""Meta-Weight-Net on MNIST with 40 % label noise, as in Betty's tutorial: one inner step per outer step.

    python benchmarks/peers/meta_weight_net.py

A network of one hidden layer maps the loss of a training image to its weight. Betty's engine is timed as its tutorial
calls it; its "darts" method estimates the gradient by finite differences, so its gradient is not compared. `higher` and
the loop by hand differentiate the step exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from comparing import Comparison, Way, mini_batches, peer
from images import digits, noisy
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import pactune as pt

TRAIN, META, SIZE, LR, OUTER_LR = 10_000, 100, 100, 0.1, 1e-3
X, Y = digits(TRAIN + META)
NOISY = noisy(Y[:TRAIN], 0.4)
META_X, META_Y = X[TRAIN:], Y[TRAIN:]


class WeightNet(nn.Module):
    """The weight of an example as a function of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1), nn.Sigmoid())

    def forward(self, losses: Tensor) -> Tensor:
        return self.layers(losses.detach()[:, None]).squeeze(1)


def modules() -> tuple[nn.Module, WeightNet]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)), WeightNet()


def train_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (hyper(losses) * losses).mean()


def valid_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def tuner(engine: str) -> pt.Tuner:
    model, hyper = modules()
    problem = pt.Problem(
        model,
        hyper,
        train=(X[:TRAIN], NOISY),
        valid=(META_X, META_Y),
        train_loss=train_loss,
        valid_loss=valid_loss,
        batch_size=SIZE,
    )
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.Truncated(1), "engine": engine}
    return pt.Tuner(problem, inner=pt.SGD(lr=LR), inner_steps=1, outer=outer, **settings)


def by_hand() -> Way:
    model, hyper = modules()
    params: dict[str, Tensor] = dict(model.named_parameters())
    weights = list(hyper.parameters())
    outer = torch.optim.Adam(weights, lr=OUTER_LR)
    rows = mini_batches(TRAIN, SIZE, "train")

    def outer_step() -> None:
        nonlocal params
        batch = next(rows)
        losses = F.cross_entropy(functional_call(model, params, (X[batch],)), NOISY[batch], reduction="none")
        found = torch.autograd.grad((hyper(losses) * losses).mean(), list(params.values()), create_graph=True)
        moved = {name: p - LR * g for (name, p), g in zip(params.items(), found, strict=True)}
        outer.zero_grad()
        risk = F.cross_entropy(functional_call(model, moved, (META_X,)), META_Y)
        for p, g in zip(weights, torch.autograd.grad(risk, weights), strict=True):
            p.grad = g
        outer.step()
        params = {name: p.detach().requires_grad_() for name, p in moved.items()}

    return Way(outer_step, weights)


def by_higher() -> Way:
    import higher

    model, hyper = modules()
    inner = torch.optim.SGD(model.parameters(), lr=LR)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    rows = mini_batches(TRAIN, SIZE, "train")

    def outer_step() -> None:
        batch = next(rows)
        with higher.innerloop_ctx(model, inner) as (net, moves):
            moves.step(train_loss(net, (X[batch], NOISY[batch]), hyper))
            outer.zero_grad()
            F.cross_entropy(net(META_X), META_Y).backward()
            outer.step()
            with torch.no_grad():
                for p, moved in zip(model.parameters(), net.parameters(), strict=True):
                    p.copy_(moved)

    return Way(outer_step, list(hyper.parameters()))


def by_betty() -> Way:
    from betty.configs import Config, EngineConfig
    from betty.engine import Engine
    from betty.problems import ImplicitProblem

    model, hyper = modules()
    rows = mini_batches(TRAIN, SIZE, "train")
    inner_batches = [(X[batch], NOISY[batch]) for batch, _ in zip(rows, range(TRAIN // SIZE), strict=False)]

    class Reweight(ImplicitProblem):
        def training_step(self, batch: Any) -> Tensor:
            return F.cross_entropy(self.classifier(batch[0]), batch[1])

    class Classify(ImplicitProblem):
        def training_step(self, batch: Any) -> Tensor:
            losses = F.cross_entropy(self.forward(batch[0]), batch[1], reduction="none")
            return (self.reweight(losses) * losses).mean()

    common: dict[str, Any] = {"device": torch.device("cpu")}
    reweight = Reweight(
        name="reweight",
        module=hyper,
        optimizer=torch.optim.Adam(hyper.parameters(), lr=OUTER_LR),
        train_data_loader=[(META_X, META_Y)],
        config=Config(type="darts", unroll_steps=1),
        **common,
    )
    classify = Classify(
        name="classifier",
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        train_data_loader=inner_batches,
        config=Config(type="darts", unroll_steps=1),
        **common,
    )
    links = {"u2l": {reweight: [classify]}, "l2u": {classify: [reweight]}}
    engine = Engine([reweight, classify], EngineConfig(train_iters=1), links)
    engine.train()

    def outer_step() -> None:
        engine.global_step += 1
        engine.train_step()

    return Way(outer_step, list(hyper.parameters()))


if __name__ == "__main__":
    Comparison(
        "meta_weight_net",
        tuner,
        {
            "betty": peer(by_betty, "betty", tolerance=float("inf")),
            "by hand": peer(by_hand),
            "higher": peer(by_higher, "higher"),
        },
        outer_steps=20,
        bars={"betty": 1.2, "by hand": 1.2, "fit": 1.5},
    ).main()
