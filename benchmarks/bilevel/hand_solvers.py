"""stocBiO, AmIGO and SOBA by hand, as solvers of benchopt's form: `set_objective`, `run`, `get_result`.

They are written as a careful person would write them in PyTorch. All three share the mini-batches of pactune's seed 0.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

from comparing import mini_batches
from problems import BilevelProblem

__all__ = ["SOBA", "SOLVERS", "AmIGO", "HandSolver", "StocBiO"]


class HandSolver:
    """The state that the solvers share: θ, λ, and mini-batches of both samples."""

    name = "by hand"
    inner_steps, products = 10, 10

    def set_objective(self, problem: BilevelProblem) -> None:
        """Start at the problem's start."""
        self.problem = problem
        self.theta, self.hyper = problem.start()
        self.gradient = torch.zeros_like(self.hyper)
        self.v = torch.zeros_like(self.theta)
        size = problem.batch_size
        self.train_rows = mini_batches(len(problem.train[1]), size, "train")
        self.fresh_rows = mini_batches(len(problem.train[1]), size, "fresh")
        self.valid_rows = mini_batches(len(problem.valid[1]), size, "risk")

    def run(self, iterations: int) -> None:
        """Take some outer steps."""
        for _ in range(iterations):
            self.outer_step()

    def get_result(self) -> dict[str, Tensor]:
        """Return both variables."""
        return {"inner_var": self.theta, "outer_var": self.hyper}

    def outer_step(self) -> None:
        raise NotImplementedError

    def descend(self, steps: int) -> Tensor:
        """Take inner steps; return the rows of the last one."""
        for _ in range(steps):
            rows = next(self.train_rows)
            theta = self.theta.requires_grad_()
            (slope,) = torch.autograd.grad(self.problem.inner(theta, self.hyper, rows), theta)
            self.theta = theta.detach() - self.problem.lr * slope
        return rows

    def outer_slope(self) -> Tensor:
        """Return the θ-gradient of the outer objective on a mini-batch."""
        theta = self.theta.detach().requires_grad_()
        return torch.autograd.grad(self.problem.outer(theta, next(self.valid_rows)), theta)[0]

    def linearized(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return θ, λ and the inner gradient on some rows, inside a graph."""
        theta, hyper = self.theta.detach().requires_grad_(), self.hyper.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.problem.inner(theta, hyper, rows), theta, create_graph=True)
        return theta, hyper, slope

    def move_outer(self, by_hyper: Tensor) -> None:
        """Move λ by −∂²G/∂θ∂λ v."""
        self.gradient = -by_hyper
        self.hyper = self.hyper.detach() - self.problem.outer_lr * self.gradient


class StocBiO(HandSolver):
    """Ten inner steps, then a truncated Neumann series on the rows of the last one (Ji et al. 2021)."""

    name = "stocBiO"

    def outer_step(self) -> None:
        """Take one outer step."""
        rows = self.descend(self.inner_steps)
        term = self.outer_slope()
        theta, hyper, slope = self.linearized(rows)
        total = term
        for _ in range(self.products):
            (image,) = torch.autograd.grad(slope, theta, term, retain_graph=True)
            term = term - self.problem.lr * image
            total = total + term
        self.move_outer(torch.autograd.grad(slope, hyper, self.problem.lr * total)[0])


class AmIGO(HandSolver):
    """Ten inner steps, then ten steps on v from its last value, on fresh rows (Arbel and Mairal 2022)."""

    name = "AmIGO"

    def outer_step(self) -> None:
        """Take one outer step."""
        self.descend(self.inner_steps)
        b = self.outer_slope()
        theta, hyper, slope = self.linearized(next(self.fresh_rows))
        for _ in range(self.products):
            (image,) = torch.autograd.grad(slope, theta, self.v, retain_graph=True)
            self.v = self.v - self.problem.linear_lr * (image - b)
        self.move_outer(torch.autograd.grad(slope, hyper, self.v)[0])


class SOBA(HandSolver):
    """One step of θ, one step of v, one step of λ (Dagréou et al. 2022)."""

    name = "SOBA"

    def outer_step(self) -> None:
        """Take one outer step."""
        self.descend(1)
        b = self.outer_slope()
        theta, hyper, slope = self.linearized(next(self.fresh_rows))
        (image,) = torch.autograd.grad(slope, theta, self.v, retain_graph=True)
        by_hyper = torch.autograd.grad(slope, hyper, self.v)[0]
        self.v = self.v - self.problem.linear_lr * (image - b)
        self.move_outer(by_hyper)


SOLVERS: dict[str, Any] = {"stocBiO": StocBiO, "AmIGO": AmIGO, "SOBA": SOBA}
