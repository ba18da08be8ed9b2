"""DARTS, first and second order, against loops by hand: mixing weights of operations in a small cell, on MNIST.

    python benchmarks/peers/darts.py [--order 1 | 2]

Every layer is a mixture of four operations, with a softmax of the architecture weights. An outer step takes one
step of SGD for the weights, and moves the mixing weights. Order 1 takes the direct derivative of the validation risk;
order 2 also differentiates the step. The hand-written loop of order 2 differentiates the step exactly.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from comparing import Comparison, Way, mini_batches, peer
from images import digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import pactune as pt

TRAIN, VALID, SIZE, WIDTH, LAYERS, LR, OUTER_LR = 5000, 64, 64, 8, 3, 0.025, 3e-4
X, Y = digits(TRAIN + VALID)
X = X.reshape(-1, 1, 28, 28)
VALID_X, VALID_Y = X[TRAIN:], Y[TRAIN:]


class Mixed(nn.Module):
    """A mixture of a convolution, a wide one, pooling and the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 5, padding=2)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        branches = (self.narrow(x).relu(), self.wide(x).relu(), F.avg_pool2d(x, 3, 1, 1), x)
        return sum(w * branch for w, branch in zip(weights.unbind(), branches, strict=True))


class Architecture(nn.Module):
    """The logits of the mixtures."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(1e-3 * torch.randn(LAYERS, 4))


class Network(nn.Module):
    """A stem, mixed layers, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, stride=4, padding=1)
        self.cells = nn.ModuleList(Mixed() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        x = self.stem(x)
        for cell, weights in zip(self.cells, logits.softmax(1).unbind(), strict=True):
            x = cell(x, weights)
        return self.head(x.mean((2, 3)))


def modules() -> tuple[Network, Architecture]:
    torch.manual_seed(0)
    return Network(), Architecture()


def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0], hyper.logits), batch[1])


def tuner(engine: str, order: int) -> pt.Tuner:
    model, hyper = modules()
    data: dict[str, Any] = {"train": (X[:TRAIN], Y[:TRAIN]), "valid": (VALID_X, VALID_Y), "batch_size": SIZE}
    problem = pt.Problem(model, hyper, **data, train_loss=loss, valid_loss=loss)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.Truncated(order - 1)}
    return pt.Tuner(problem, inner=pt.SGD(lr=LR), inner_steps=1, outer=outer, engine=engine, **settings)


def by_hand(order: int) -> Way:
    model, hyper = modules()
    params: dict[str, Tensor] = dict(model.named_parameters())
    outer, rows = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR), mini_batches(TRAIN, SIZE, "train")

    def outer_step() -> None:
        nonlocal params
        batch = next(rows)
        risk = F.cross_entropy(functional_call(model, params, (X[batch], hyper.logits)), Y[batch])
        found = torch.autograd.grad(risk, list(params.values()), create_graph=order == 2)
        moved = {name: p - LR * g for (name, p), g in zip(params.items(), found, strict=True)}
        if order == 1:
            moved = {name: p.detach() for name, p in moved.items()}
        outer.zero_grad()
        risk = F.cross_entropy(functional_call(model, moved, (VALID_X, hyper.logits)), VALID_Y)
        (hyper.logits.grad,) = torch.autograd.grad(risk, [hyper.logits])
        outer.step()
        params = {name: p.detach().requires_grad_() for name, p in moved.items()}

    return Way(outer_step, [hyper.logits])


def comparison(order: int) -> Comparison:
    make = lambda engine: tuner(engine, order)  # noqa: E731
    return Comparison(f"darts_{order}", make, {"by hand": peer(lambda: by_hand(order))}, 10, bars={"by hand": 1.2})


if __name__ == "__main__":
    at = sys.argv.index("--order") if "--order" in sys.argv else None
    chosen = int(sys.argv[at + 1]) if at is not None else 2
    if at is not None:
        del sys.argv[at : at + 2]
    comparison(chosen).main()
