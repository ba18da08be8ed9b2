"""Which rounds can be run as one, how they are joined, and how their ends are told apart again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from pactune.engines.snapshots import problem_snapshot, snapshots_equal
from pactune.hypergradient.records import InnerState, StepData
from pactune.parallel import SINGLE_RANK
from pactune.problem import Problem
from pactune.problem.data.joined import BatchJoiner
from pactune.rounds.chain import ChainEnd
from pactune.rounds.engine import ORDERED
from pactune.rounds.plan import OnStep, RoundOutcome, RoundRequest
from pactune.rounds.round import combine, half_inverse_root
from pactune.stacking.stacked import StackedObjective, StackedProblem
from pactune.stacking.structure import same_structure
from pactune.trees import Params, clone, scale, stack, unstack

__all__ = ["Stack", "stack_refusal"]

TOLERANCE = 3e-4  # relative, in float32, between risks of stacked and single runs; rounding is far below
SIDE_BY_SIDE = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
)  # stacked convolutions are slow, statistics awkward


class Stack:
    """Several requests of one structure as one, chains and all.

    Args:
        requests: rounds for which `stack_refusal` found nothing.
    """

    def __init__(self, requests: Sequence[RoundRequest]) -> None:
        self._problems = [request.plan.trajectory.problem for request in requests for _ in request.states]
        self._fixed = problem_snapshot(self._problems[0])
        trajectory, self._join_train, self._join_valid = requests[0].plan.trajectory, BatchJoiner(), BatchJoiner()
        defaults = [request.plan.trajectory.default_hyper for request in requests for _ in request.states]
        self._trajectory = replace(
            trajectory,
            problem=StackedProblem(self._problems),
            ranks=SINGLE_RANK,  # the ends of the chains meet those of other ranks after they are told apart
            objective=StackedObjective(trajectory.objective),
            default_hyper=stack([default for default in defaults if default is not None]) if defaults[0] else None,
        )

    def join(self, requests: Sequence[RoundRequest]) -> RoundRequest:
        """Return one request whose single chain is all chains of all requests."""
        first = requests[0]
        states = [state for request in requests for state in request.states]
        drawn = None if first.drawn is None else [stack([draw for request in requests for draw in request.drawn or ()])]
        hyper = stack([request.hyper for request in requests for _ in request.states])
        return RoundRequest(
            replace(first.plan, trajectory=self._trajectory),
            [_stack_states(states)],
            hyper,
            lambda t: [self._step_data([data for request in requests for data in request.step_data_at(t)])],
            drawn,
            None if first.on_step is None else _online(requests, hyper),
            first.phase,
            min(request.position for request in requests),
        )

    def changed(self, request: RoundRequest, singles: Sequence[RoundRequest]) -> list[Problem]:
        """Return the problems that no longer share what all shared at first.

        Runs with problems of their own are compared by their numbers too, since a loss may read anything.
        """
        problems = list(dict.fromkeys(self._problems))
        differing = [problem for problem in problems if not snapshots_equal(problem_snapshot(problem), self._fixed)]
        if len(problems) > 1:
            agree = self._agreements(request, singles)
            differing += [problem for problem, same in zip(self._problems, agree, strict=True) if not same]
        return list(dict.fromkeys(differing))

    @staticmethod
    def split(requests: Sequence[RoundRequest], end: ChainEnd) -> list[RoundOutcome]:
        """Return the outcome of every request."""
        if (
            len(requests) == len(end.risk)
            and requests[0].on_step is None
            and requests[0].plan.trajectory.ranks.count == 1
        ):
            return _single_outcomes(end)
        ends = iter(_ends(end))
        pairs = [(request, [next(ends) for _ in request.states]) for request in requests]
        return [combine(request.plan, own, online=request.on_step is not None) for request, own in pairs]

    def trial(self, request: RoundRequest, singles: Sequence[RoundRequest]) -> str | None:
        """Compare the joined risks with those of the single runs at the start; return what is wrong."""
        agree = all(self._agreements(request, singles))
        return None if agree else "run together, the runs do not give the risks that each gives alone"

    def _agreements(self, request: RoundRequest, singles: Sequence[RoundRequest]) -> list[bool]:
        """Return for every chain whether its joined risks are those that it has alone."""
        (state,), (data,), problem = request.states, request.step_data_at(0), self._trajectory.problem
        with torch.no_grad():
            found = _risks(problem, state, request.hyper, data)
            each = [
                _risks(one.plan.trajectory.problem, start, one.hyper, met)
                for one in singles
                for start, met in zip(one.states, one.step_data_at(0), strict=True)
            ]
        wanted = torch.stack(each)
        loose = TOLERANCE if wanted.dtype != torch.float64 else TOLERANCE**2
        agree: list[bool] = torch.isclose(found.T, wanted, rtol=loose, atol=loose, equal_nan=True).all(1).tolist()
        return agree

    def _step_data(self, step_data: list[StepData]) -> StepData:
        noise = (
            None if step_data[0].noise is None else stack([data.noise for data in step_data if data.noise is not None])
        )
        train, valid = self._join_train([t.train for t in step_data]), self._join_valid([t.valid for t in step_data])
        return StepData(train, valid, noise, None)


def stack_refusal(requests: Sequence[RoundRequest]) -> str | None:
    """Return why rounds cannot be run as one, as far as it can be told without trying; None when they may."""
    first, plans = requests[0], [request.plan for request in requests]
    trajectory = first.plan.trajectory
    if any(plan.trajectory.stochastic for plan in plans):
        return "a forward draws random numbers, which are seeded run by run"
    if any(plan.trajectory.ranks.shards > 1 for plan in plans):
        return "ranks that share a mini-batch talk to each other at every step"
    if not all(plan.trajectory.problem.replayable for plan in plans):
        return ORDERED
    slow = next((m for m in trajectory.problem.model.modules() if isinstance(m, SIDE_BY_SIDE)), None)
    if slow is not None:
        return f"a model with {type(slow).__name__} is not faster stacked"
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


def _risks(problem: Problem, state: InnerState, hyper: Params, data: StepData) -> Tensor:
    """Return both risks, and the length of the penalty's gradient where there is one."""
    parts = [
        risk(state.params, hyper, clone(state.buffers), batch)
        for risk, batch in ((problem.train_risk, data.train), (problem.valid_risk, data.valid))
    ]
    if problem.has_penalty:
        squares = [value.square() for value in problem.penalty_gradient(state.params, hyper).values()]
        axes = [tuple(range(len(problem.runs), value.ndim)) for value in squares]
        parts.append(torch.stack([v.sum(axis) if axis else v for v, axis in zip(squares, axes, strict=True)]).sum(0))
    return torch.stack(parts)


def _stack_states(states: Sequence[InnerState]) -> InnerState:
    slots = {slot: stack([state.slots[slot] for state in states]) for slot in states[0].slots}
    params, buffers = stack([state.params for state in states]), stack([state.buffers for state in states])
    return InnerState(params, slots, buffers, states[0].step)


def _ends(end: ChainEnd) -> list[ChainEnd]:
    """Return the ends of all chains."""
    count = len(end.risk)
    states = _states(end.state, count)
    by_risk, by_path = (unstack(tree) or [{}] * count for tree in (end.risk_gradient, end.path_gradient))
    return [ChainEnd(*parts) for parts in zip(states, end.risk, end.total, by_risk, by_path, strict=True)]


def _states(state: InnerState, count: int) -> list[InnerState]:
    params, buffers = unstack(state.params), unstack(state.buffers) or [Params() for _ in range(count)]
    slots = {slot: unstack(values) for slot, values in state.slots.items()}
    return [
        InnerState(params[i], {slot: values[i] for slot, values in slots.items()}, buffers[i], state.step)
        for i in range(count)
    ]


def _single_outcomes(end: ChainEnd) -> list[RoundOutcome]:
    """Return what `combine` makes of chains that are each a run of its own, for all of them at once."""
    count = len(end.risk)
    by_path = unstack(scale(half_inverse_root(end.total), end.path_gradient)) or [Params() for _ in range(count)]
    by_risk = unstack(end.risk_gradient) or [Params() for _ in range(count)]
    parts = zip(_states(end.state, count), end.risk, end.total.sqrt(), by_risk, by_path, strict=True)
    return [RoundOutcome([state], *others) for state, *others in parts]


def _online(requests: Sequence[RoundRequest], stacked: Params) -> OnStep:
    """Return what moves the λ of every request, and brings the moved ones back into the stack."""

    def on_step(gradient: Params) -> None:
        index, parts = 0, unstack(gradient)
        for request in requests:
            assert request.on_step is not None
            count = len(request.states)
            request.on_step(request.plan.trajectory.ranks.mean(parts[index : index + count]))
            for name, value in request.hyper.items():
                stacked[name][index : index + count] = value
            index += count

    return on_step
