"""A small GPT with scaled dot-product attention: per-element weight decay by T1–T2, against a loop by hand.

    python benchmarks/peers/gpt.py

Two layers of width 64 with four heads, sequences of 32 tokens, one step of SGD per outer step. The outer steps are
small, since decays of any sign would let the weights grow without bound in the thousand rounds before a measurement.
"""

from __future__ import annotations

from typing import Any

import torch
from comparing import Comparison, Way, mini_batches, peer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import pactune as pt

TOKENS, LENGTH, WIDTH, HEADS, LAYERS, ROWS, VALID, SIZE, LR, OUTER_LR = 50, 32, 64, 4, 2, 512, 32, 32, 0.1, 1e-5
GENERATOR = torch.Generator().manual_seed(0)
TEXT = torch.randint(0, TOKENS, (ROWS + VALID, 1), generator=GENERATOR)
TEXT = (TEXT + torch.arange(LENGTH + 1) * torch.randint(1, 4, (ROWS + VALID, 1), generator=GENERATOR)) % TOKENS
X, Y = TEXT[:, :-1], TEXT[:, 1:]


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.heads(self.first(x)).reshape(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    """Tokens and positions, blocks, and scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.scores = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.blocks(self.tokens(x) + self.positions.weight))


def loss(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def network() -> nn.Module:
    torch.manual_seed(0)
    return GPT()


def tuner(engine: str) -> pt.Tuner:
    model = network()
    hyper = pt.WeightDecay(model, per="element", init=1e-3)
    data: dict[str, Any] = {"train": (X[:ROWS], Y[:ROWS]), "valid": (X[ROWS:], Y[ROWS:]), "batch_size": SIZE}
    problem = pt.Problem(model, hyper, **data, loss=loss)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.Truncated(1), "engine": engine}
    return pt.Tuner(problem, inner=pt.SGD(lr=LR), inner_steps=1, outer=outer, **settings)


def by_hand() -> Way:
    model = network()
    params: dict[str, Tensor] = dict(model.named_parameters())
    decays = {name: torch.full_like(p, 1e-3).requires_grad_() for name, p in params.items()}
    outer, rows = torch.optim.Adam(decays.values(), lr=OUTER_LR), mini_batches(ROWS, SIZE, "train")

    def outer_step() -> None:
        nonlocal params
        batch = next(rows)
        risk = loss(functional_call(model, params, (X[batch],)), Y[batch])
        found = dict(zip(params, torch.autograd.grad(risk, list(params.values())), strict=True))
        fixed = {name: p.detach() for name, p in params.items()}
        moved = {name: p - LR * (found[name] + decays[name] * p) for name, p in fixed.items()}
        outer.zero_grad()
        loss(functional_call(model, moved, (X[ROWS:],)), Y[ROWS:]).backward(inputs=list(decays.values()))
        outer.step()
        params = {name: p.detach().requires_grad_() for name, p in moved.items()}

    return Way(outer_step, list(decays.values()))


def in_order(tuner: pt.Tuner) -> list[Tensor]:
    """Return the decays in the order of the model's parameters."""
    values = {name.rpartition("values.")[2].replace("/", "."): p for name, p in tuner.problem.hyper.named_parameters()}
    return [values[name] for name, _ in tuner.problem.model.named_parameters()]


if __name__ == "__main__":
    bars = {"by hand": 1.1}
    Comparison("gpt", tuner, {"by hand": peer(by_hand)}, outer_steps=10, bars=bars, hyper=in_order).main()
