"""iMAML as in hypertorch's example: a proximal inner problem, sixteen steps, five conjugate gradients, 5-way 1-shot.

    python benchmarks/peers/imaml.py

The model is an MLP on random images of 28 × 28 pixels; four tasks per outer step.
"""

from __future__ import annotations

from typing import Any

import torch
from comparing import Comparison, Way, peer, tuned_start
from conv_maml import TASKS, draw, tasks_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import pactune as pt

STEPS, PRODUCTS, STRENGTH, LR, OUTER_LR = 16, 5, 2.0, 0.1, 1e-3


class Scaled(nn.Module):
    """Divides the pixels, so that the penalised risk is convex around the start."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), Scaled(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 5))


class Proximal(nn.Module):
    """θ_0 = λ and the penalty ½ s Σ(θ − λ)²."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.start = pt.Initialization(model)

    def initial(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.start.initial(params)

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        start = self.start.initial(params)
        distance: Any = sum(((p - start[name]) ** 2).sum() for name, p in params.items())
        return 0.5 * STRENGTH * distance


def tuner(engine: str) -> pt.Tuner:
    model = network()
    hyper = Proximal(model)
    problem = pt.Problem(model, hyper, tasks=draw, tasks_per_step=TASKS, loss=F.cross_entropy)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    estimator = pt.Implicit(pt.ConjugateGradient(PRODUCTS))
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": estimator, "restart": True}
    return pt.Tuner(problem, inner=pt.SGD(lr=LR), inner_steps=STEPS, outer=outer, engine=engine, **settings)


def by_hypertorch() -> Way:
    import hypergrad as hg

    model = network()
    names, hyper = [name for name, _ in model.named_parameters()], list(model.parameters())
    outer, step = torch.optim.Adam(hyper, lr=OUTER_LR), 0

    def output(params: list[Tensor], x: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, params, strict=True)), (x,))

    def outer_step() -> None:
        nonlocal step
        outer.zero_grad()
        for (x, y), (xv, yv) in tasks_of(step):

            def train_loss(params: list[Tensor], start: list[Tensor], x: Tensor = x, y: Tensor = y) -> Tensor:
                pairs = zip(params, start, strict=True)
                return F.cross_entropy(output(params, x), y) + 0.5 * STRENGTH * sum(
                    ((p - s) ** 2).sum() for p, s in pairs
                )

            def valid_loss(params: list[Tensor], _: list[Tensor], x: Tensor = xv, y: Tensor = yv) -> Tensor:
                return F.cross_entropy(output(params, x), y) / TASKS

            inner, fixed_point = hg.GradientDescent(train_loss, LR), hg.GradientDescent(train_loss, 1.0)
            params = [p.detach().clone().requires_grad_() for p in hyper]
            for _ in range(STEPS):
                params = inner(params, hyper, create_graph=False)
            hg.CG(params, hyper, K=PRODUCTS, fp_map=fixed_point, outer_loss=valid_loss)
        outer.step()
        step += 1

    return Way(outer_step, hyper)


if __name__ == "__main__":
    peers = {"hypertorch": peer(by_hypertorch, "hypergrad", tolerance=1e-3)}
    Comparison("imaml", tuner, peers, outer_steps=5, bars={"hypertorch": 1.0}, hyper=tuned_start).main()
