"""The regularizer of a round from Σ_t θ_t² alone.

A penalty ½ Σ_i h_i(λ) θ_i² has the gradient h(λ) ⊙ θ. The distance of this gradient from that under λ0 is
q_t = Σ_i (h_i(λ) − h_i(λ0))² θ_{t,i}². While λ stays the same, Σ_t q_t is therefore q at √(Σ_t θ_t²), and its direct
λ-derivative is that of q there. A step only adds θ_t² to a sum, in one pass over the parameters.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pactune.hypergradient.trajectory import Trajectory
from pactune.objectives.base import PathContext
from pactune.objectives.stacked import measure_runs
from pactune.trees import Params, map_tree

__all__ = ["measure_squares", "sums_squares"]

UNREAD = PathContext(0.0, {}, 0, 0)  # a squared distance depends on the two gradients alone


def sums_squares(trajectory: Trajectory) -> bool:
    """Return True if Σ_t q_t follows from Σ_t θ_t² while λ stays the same, as for `HyperDrift` with a weight decay."""
    objective = trajectory.objective
    return objective.compares_default and objective.squared_distance and trajectory.problem.has_diagonal_penalty


@torch.no_grad()
def measure_squares(trajectory: Trajectory, squares: Params, hyper: Params, *, by_hyper: bool) -> tuple[Tensor, Params]:
    """Return Σ_t q_t from Σ_t θ_t², and its direct λ-derivative, which is empty unless `by_hyper`."""
    problem, objective, default = trajectory.problem, trajectory.objective, trajectory.default_hyper
    assert default is not None
    root = map_tree(torch.sqrt, squares)
    train, reference = (problem.penalty_gradient(root, one) for one in (hyper, default))
    measure = partial(measure_runs, objective) if problem.runs else objective.measure
    measured = measure(train, reference, UNREAD, by_valid=False)
    return measured.summand, problem.penalty_vjp(root, hyper, measured.by_train) if by_hyper else {}
