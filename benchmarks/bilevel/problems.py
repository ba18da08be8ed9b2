"""The two problems of benchmark_bilevel as plain functions of (θ, λ, rows), on data of the same shapes.

- regularization: logistic regression with one coefficient exp(λ_j) per feature, 49,990 training and 91,701 validation
  rows of 22 features, the shapes of ijcnn1.
- cleaning: softmax regression on MNIST with half of 20,000 labels wrong, a weight sigmoid(λ_i) per row, 5,000
  validation rows, and the penalty 0.1‖θ‖².
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

from images import digits, noisy

__all__ = ["PROBLEMS", "BilevelProblem", "cleaning", "regularization"]

Pair = tuple[Tensor, Tensor]
RIDGE = 0.2  # of the penalty ½ · RIDGE · ‖θ‖² in the cleaning problem


class BilevelProblem(NamedTuple):
    """A problem with the settings of its solvers.

    Attributes:
        name: its name.
        train: rows and labels of the inner problem.
        valid: rows and labels of the outer problem.
        inner: the inner objective as a function of θ, λ and row numbers.
        outer: the outer objective as a function of θ and row numbers.
        start: θ and λ at the start.
        lr: the inner step size.
        outer_lr: the outer step size.
        batch_size: rows of a mini-batch.
        linear_lr: the step size of v in the linear system.
    """

    name: str
    train: Pair
    valid: Pair
    inner: Callable[[Tensor, Tensor, Tensor], Tensor]
    outer: Callable[[Tensor, Tensor], Tensor]
    start: Callable[[], tuple[Tensor, Tensor]]
    lr: float
    outer_lr: float
    batch_size: int = 64
    linear_lr: float = 0.1

    def value(self, theta: Tensor) -> float:
        """Return the outer objective on all validation rows."""
        with torch.no_grad():
            return float(self.outer(theta, torch.arange(len(self.valid[1]))))


def regularization(train_rows: int = 49_990, valid_rows: int = 91_701, features: int = 22) -> BilevelProblem:
    """Return logistic regression with one coefficient per feature; half of the features are noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(train_rows + valid_rows, features, generator=generator)
    truth = torch.cat([torch.ones(features // 2), torch.zeros(features - features // 2)])
    y = (x @ truth + torch.randn(len(x), generator=generator) > 0).float()
    train, valid = (x[:train_rows], y[:train_rows]), (x[train_rows:], y[train_rows:])

    def inner(theta: Tensor, strengths: Tensor, rows: Tensor) -> Tensor:
        risk = F.binary_cross_entropy_with_logits(train[0][rows] @ theta, train[1][rows])
        return risk + 0.5 * (strengths.exp() * theta**2).sum()

    def outer(theta: Tensor, rows: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(valid[0][rows] @ theta, valid[1][rows])

    def start() -> tuple[Tensor, Tensor]:
        return torch.zeros(features), torch.full((features,), -1.0)

    return BilevelProblem("regularization", train, valid, inner, outer, start, lr=0.3, outer_lr=0.1)


def cleaning(train_rows: int = 20_000, valid_rows: int = 5_000) -> BilevelProblem:
    """Return softmax regression with a weight per training row."""
    x, y = digits(train_rows + valid_rows)
    train, valid = (x[:train_rows], noisy(y[:train_rows], 0.5)), (x[train_rows:], y[train_rows:])

    def inner(theta: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
        losses = F.cross_entropy(train[0][rows] @ theta, train[1][rows], reduction="none")
        return (logits[rows].sigmoid() * losses).mean() + 0.5 * RIDGE * (theta**2).sum()

    def outer(theta: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(valid[0][rows] @ theta, valid[1][rows])

    def start() -> tuple[Tensor, Tensor]:
        return torch.zeros(784, 10), torch.zeros(train_rows)

    return BilevelProblem("cleaning", train, valid, inner, outer, start, lr=0.1, outer_lr=100.0)


PROBLEMS: dict[str, Callable[..., BilevelProblem]] = {"regularization": regularization, "cleaning": cleaning}
