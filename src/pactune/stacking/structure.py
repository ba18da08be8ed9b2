"""Which rounds have one structure and may be stacked."""

from __future__ import annotations

from typing import Any

from pactune.engines.snapshots import problem_snapshot, same_content
from pactune.rounds.plan import RoundRequest

__all__ = ["same_structure"]


def same_structure(request: RoundRequest, other: RoundRequest) -> bool:
    """Whether two rounds differ in nothing that running them as one would take from the first."""
    return same_content(_structure(request), _structure(other))


def _structure(request: RoundRequest) -> tuple[Any, ...]:
    plan, problem = request.plan, request.plan.trajectory.problem
    objective = plan.trajectory.objective
    words = {name: value for name, value in vars(objective).items() if name not in ("zeta", "default")}
    trees = (*request.states[0][:1], *request.states[0].slots.values(), request.states[0].buffers, request.hyper)
    return (
        (plan.inner_steps, plan.derivatives, plan.path_stride, plan.risk_estimator, plan.path_estimator, request.phase),
        (plan.trajectory.dynamics, type(objective), words, problem_snapshot(problem)),
        [{name: (value.shape, value.dtype, value.device) for name, value in tree.items()} for tree in trees],
        {state.step for state in request.states},
        (problem.train.rows, problem.valid.rows, request.drawn is None, request.on_step is None),
    )
