"""pactune as a solver of benchopt's form, for the two problems of benchmark_bilevel.

    solver = Solver(method="stocBiO")
    solver.set_objective(problem)
    solver.run(100)
    solver.get_result()["outer_var"]

With benchopt installed, `Solver` derives from its `BaseSolver` and can be copied into a benchmark's `solvers` folder.
"""

from __future__ import annotations

from typing import Any

import torch
from problems import RIDGE, BilevelProblem
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

try:
    from benchopt import BaseSolver
except ImportError:  # benchopt is optional: the runner of this folder calls the three methods itself
    BaseSolver = object

__all__ = ["METHODS", "Solver", "make_tuner"]

METHODS = ("stocBiO", "AmIGO", "SOBA")
INNER_STEPS = {"stocBiO": 10, "AmIGO": 10, "SOBA": 1}


class Scores(nn.Module):
    """The linear model xθ, started at zero."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Ridge(nn.Module):
    """One coefficient exp(λ_j) per feature."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(start.clone())

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        return 0.5 * (self.values.exp() * params["weight"] ** 2).sum()

    def penalty_gradient(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"weight": self.values.exp() * params["weight"]}


class RowWeights(nn.Module):
    """A weight sigmoid(λ_i) per training row, and a fixed penalty."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(start.clone())

    def weigh(self, losses: Tensor, rows: Tensor) -> Tensor:
        return (self.values[rows].sigmoid() * losses).mean()

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        return 0.5 * RIDGE * (params["weight"] ** 2).sum()

    def penalty_gradient(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"weight": RIDGE * params["weight"]}


def estimator_of(method: str, problem: BilevelProblem) -> pt.Estimator:
    """Return the estimator of a method."""
    if method == "stocBiO":
        return pt.Implicit(pt.Neumann(10, alpha=problem.lr))
    return pt.RunningImplicit(alpha=problem.linear_lr, steps=10 if method == "AmIGO" else 1)


def make_tuner(problem: BilevelProblem, method: str = "stocBiO", engine: str = "auto") -> pt.Tuner:
    """Return the tuner of a problem."""
    theta, start = problem.start()
    model = Scores(theta)
    cleans = problem.name == "cleaning"
    hyper = RowWeights(start) if cleans else Ridge(start)
    described = pt.Problem(
        model,
        hyper,
        train=problem.train,
        valid=problem.valid,
        loss=F.cross_entropy if cleans else F.binary_cross_entropy_with_logits,
        batch_size=problem.batch_size,
        valid_batch_size=problem.batch_size,
    )
    return pt.Tuner(
        described,
        inner=pt.SGD(lr=problem.lr),
        inner_steps=INNER_STEPS[method],
        outer=torch.optim.SGD(hyper.parameters(), lr=problem.outer_lr),
        objective=pt.ValidationRisk(),
        hypergradient=estimator_of(method, problem),
        engine=engine,
    )


class Solver(BaseSolver):  # type: ignore[misc]
    """pactune's loop of `hypergradient()` and a step of the optimizer."""

    name = "pactune"
    sampling_strategy = "iteration"
    parameters = {"method": list(METHODS)}  # noqa: RUF012

    def __init__(self, method: str = "stocBiO", **settings: Any) -> None:
        super().__init__(**settings)
        self.method = method

    def set_objective(self, problem: BilevelProblem) -> None:
        """Make the tuner."""
        self.tuner = make_tuner(problem, self.method)

    def run(self, iterations: int) -> None:
        """Take some outer steps."""
        for _ in range(iterations):
            self.tuner.hypergradient()
            self.tuner.outer.step()

    def get_result(self) -> dict[str, Tensor]:
        """Return both variables."""
        problem = self.tuner.problem
        return {"inner_var": problem.parameters()["weight"], "outer_var": problem.hyperparameters()["values"]}
