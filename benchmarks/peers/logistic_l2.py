"""One L2 coefficient per feature of a logistic regression, as in hypertorch's example: implicit and unrolled.

    python benchmarks/peers/logistic_l2.py [--method cg | unroll]

Synthetic rows of twenty informative features among a hundred. "cg" trains for 100 steps and solves with ten conjugate
gradients (hypertorch's `CG`); "unroll" differentiates through 100 steps (hypertorch's `reverse`, and `higher`).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from comparing import Comparison, Way, peer
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

ROWS, FEATURES, STEPS, PRODUCTS, LR, OUTER_LR = 200, 100, 100, 10, 0.5, 1e-3
torch.manual_seed(0)
SIGNAL = torch.zeros(FEATURES).index_fill_(0, torch.arange(20), 1.0)
X = torch.randn(2 * ROWS, FEATURES)
Y = (X @ SIGNAL + torch.randn(2 * ROWS) > 0).float()
TRAIN, VALID = (X[:ROWS], Y[:ROWS]), (X[ROWS:], Y[ROWS:])


class Linear(nn.Module):
    """A score per row, without a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class Ridge(nn.Module):
    """The penalty ½ Σ exp(λ) θ² as a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.log_strength = nn.Parameter(torch.full((FEATURES,), -3.0))

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        return 0.5 * (self.log_strength.exp() * params["weight"] ** 2).sum()


def tuner(engine: str, method: str) -> pt.Tuner:
    model, hyper = Linear(), Ridge()
    problem = pt.Problem(model, hyper, train=TRAIN, valid=VALID, loss=F.binary_cross_entropy_with_logits)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    solver = pt.ConjugateGradient(PRODUCTS)
    estimator: pt.Estimator = pt.Implicit(solver) if method == "cg" else pt.Windowed(STEPS)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": estimator, "restart": True}
    return pt.Tuner(problem, inner=pt.SGD(lr=LR), inner_steps=STEPS, outer=outer, engine=engine, **settings)


def train_loss(params: list[Tensor], hyper: list[Tensor]) -> Tensor:
    penalty = 0.5 * (hyper[0].exp() * params[0] ** 2).sum()
    return F.binary_cross_entropy_with_logits(TRAIN[0] @ params[0], TRAIN[1]) + penalty


def valid_loss(params: list[Tensor], hyper: list[Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(VALID[0] @ params[0], VALID[1])


def start() -> tuple[list[Tensor], torch.optim.Optimizer]:
    hyper = [torch.full((FEATURES,), -3.0, requires_grad=True)]
    return hyper, torch.optim.Adam(hyper, lr=OUTER_LR)


def by_hypertorch_cg() -> Way:
    import hypergrad as hg

    hyper, outer = start()
    inner = hg.GradientDescent(train_loss, LR)
    fixed_point = hg.GradientDescent(train_loss, 1.0)

    def outer_step() -> None:
        params = [torch.zeros(FEATURES, requires_grad=True)]
        for _ in range(STEPS):
            params = inner(params, hyper, create_graph=False)
        outer.zero_grad()
        hg.CG(params, hyper, K=PRODUCTS, fp_map=fixed_point, outer_loss=valid_loss)
        outer.step()

    return Way(outer_step, hyper)


def by_hypertorch_reverse() -> Way:
    import hypergrad as hg

    hyper, outer = start()
    inner = hg.GradientDescent(train_loss, LR)

    def outer_step() -> None:
        history = [[torch.zeros(FEATURES, requires_grad=True)]]
        for _ in range(STEPS):
            history.append(inner(history[-1], hyper, create_graph=False))
        outer.zero_grad()
        hg.reverse(history, hyper, [inner] * STEPS, valid_loss)
        outer.step()

    return Way(outer_step, hyper)


def by_higher() -> Way:
    import higher

    hyper, outer = start()
    model = Linear()
    inner = torch.optim.SGD(model.parameters(), lr=LR)

    def outer_step() -> None:
        with higher.innerloop_ctx(model, inner) as (net, moves):
            for _ in range(STEPS):
                moves.step(train_loss(list(net.parameters()), hyper))
            outer.zero_grad()
            valid_loss(list(net.parameters()), hyper).backward()
        outer.step()

    return Way(outer_step, hyper)


def comparison(method: str) -> Comparison:
    if method == "cg":
        peers = {"hypertorch": peer(by_hypertorch_cg, "hypergrad", tolerance=1e-3)}
    else:
        peers = {"hypertorch": peer(by_hypertorch_reverse, "hypergrad"), "higher": peer(by_higher, "higher")}
    bars = {"hypertorch": 0.9, "higher": 1.0}
    notes = {"hypertorch": "package `hypergrad` of github.com/prolearner/hypertorch; PyPI has others of these names"}
    make = lambda engine: tuner(engine, method)  # noqa: E731
    return Comparison(f"logistic_l2_{method}", make, peers, outer_steps=5, bars=bars, notes=notes)


if __name__ == "__main__":
    at = sys.argv.index("--method") if "--method" in sys.argv else None
    chosen = sys.argv[at + 1] if at is not None else "cg"
    if at is not None:
        del sys.argv[at : at + 2]
    comparison(chosen).main()
