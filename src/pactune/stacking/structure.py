"""Which rounds may be stacked.

The stacked run takes everything but data, seed, ζ and the values of θ, λ and buffers from the first run. So all the
rest must be equal in all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pactune.engines.snapshots import problem_snapshot, same_content
from pactune.nested import other_leaf
from pactune.problem import Problem
from pactune.rounds.engine import ORDERED
from pactune.rounds.plan import RoundRequest
from pactune.stacking.layers import has_stacked_layers

__all__ = ["problem_of", "same_structure", "stack_refusal"]


def stack_refusal(requests: Sequence[RoundRequest]) -> str | None:
    """Return the reason why rounds cannot be stacked, as far as it is known without a trial; None if there is none."""
    first, plans = requests[0], [request.plan for request in requests]
    trajectory = first.plan.trajectory
    if any(plan.trajectory.stochastic for plan in plans):
        return "a forward draws random numbers, which are seeded run by run"
    if any(plan.trajectory.ranks.shards > 1 for plan in plans):
        return "ranks that share a mini-batch talk to each other at every step"
    if not all(plan.trajectory.problem.replayable for plan in plans):
        return ORDERED
    if any(other_leaf((data.train.data, data.valid.data)) for request in requests for data in request.step_data_at(0)):
        return "a batch holds more than tensors, which may differ from run to run"
    if trajectory.problem.device.type != "cuda" and has_stacked_layers(problem_of(first).model):
        return "a model with convolutions or batch normalisation is not faster stacked on a CPU"
    if not trajectory.dynamics.differentiable:
        return "an optimizer of torch.optim keeps a state of its own"
    if trajectory.dynamics.clip is not None:
        return "a step that clips its gradient needs the norm of each run by itself"
    for role, estimator in (("hypergradient", first.plan.risk_estimator), ("path", first.plan.path_estimator)):
        if first.plan.derivatives and not estimator.stackable:
            return f"{type(estimator).__name__} as {role} estimator works on one run at a time"
    if not all(same_structure(request, first) for request in requests):
        return "the runs differ in more than data, seed, ζ and values of tensors"
    return None


def same_structure(request: RoundRequest, other: RoundRequest) -> bool:
    """Return True if two rounds can be stacked: the stacked run takes these settings from the first one."""
    return same_content(_structure(request), _structure(other))


def problem_of(request: RoundRequest) -> Problem:
    """Return the problem of a single run."""
    (problem,) = request.plan.trajectory.problem.members
    return problem


def _structure(request: RoundRequest) -> tuple[Any, ...]:
    plan, problem = request.plan, problem_of(request)
    objective = plan.trajectory.objective
    settings = {name: value for name, value in vars(objective).items() if name not in ("zeta", "default")}
    trees = (*request.states[0][:1], *request.states[0].slots.values(), request.states[0].buffers, request.hyper)
    return (
        (plan.inner_steps, plan.derivatives, plan.path_stride, plan.risk_estimator, plan.path_estimator, request.phase),
        (plan.trajectory.dynamics, type(objective), settings, problem_snapshot(problem)),
        [{name: (value.shape, value.dtype, value.device) for name, value in tree.items()} for tree in trees],
        {state.step for state in request.states},
        (problem.train.size, problem.valid.size, plan.trajectory.risk_sample.risk_size),
        (request.drawn is None, request.on_step is None),
    )
