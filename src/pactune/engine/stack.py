"""Which rounds can be run as one, how they are joined, and how their ends are told apart again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from pactune.engine.base import ORDERED
from pactune.engine.chain import ChainEnd
from pactune.engine.likeness import equal, fixed_parts, same_structure
from pactune.engine.plan import Job, OnStep, Outcome
from pactune.engine.rounds import combine, half_inverse_root
from pactune.engine.stacked import Joiner, StackedObjective, StackedProblem, stack, unstack
from pactune.hypergradient.records import InnerState, Tick
from pactune.parallel import ALONE
from pactune.problem import Problem
from pactune.trees import Params, clone, scale

__all__ = ["Stack", "stack_refusal"]

TOLERANCE = 3e-4  # relative, in float32, between risks of stacked and single runs; rounding is far below
SIDE_BY_SIDE = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
)  # stacked convolutions are slow, statistics awkward


class Stack:
    """Several jobs of one structure as one, chains and all.

    Args:
        jobs: rounds for which `stack_refusal` found nothing.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._problems = [job.plan.trajectory.problem for job in jobs for _ in job.states]
        self._fixed = fixed_parts(self._problems[0])
        trajectory, self._join_train, self._join_valid = jobs[0].plan.trajectory, Joiner(), Joiner()
        defaults = [job.plan.trajectory.default_hyper for job in jobs for _ in job.states]
        self._trajectory = replace(
            trajectory,
            problem=StackedProblem(self._problems),
            team=ALONE,  # the ends of the chains meet those of other ranks after they are told apart
            objective=StackedObjective(trajectory.objective),
            default_hyper=stack([default for default in defaults if default is not None]) if defaults[0] else None,
        )

    def join(self, jobs: Sequence[Job]) -> Job:
        """Return one job whose single chain is all chains of all jobs."""
        first = jobs[0]
        states = [state for job in jobs for state in job.states]
        drawn = None if first.drawn is None else [stack([draw for job in jobs for draw in job.drawn or ()])]
        hyper = stack([job.hyper for job in jobs for _ in job.states])
        return Job(
            replace(first.plan, trajectory=self._trajectory),
            [_stack_states(states)],
            hyper,
            lambda t: [self._tick([tick for job in jobs for tick in job.ticks(t)])],
            drawn,
            None if first.on_step is None else _online(jobs, hyper),
            first.phase,
            min(job.position for job in jobs),
        )

    def changed(self, job: Job, singles: Sequence[Job]) -> list[Problem]:
        """Return the problems that no longer share what all shared at first.

        Runs with problems of their own are compared by their numbers too, since a loss may read anything.
        """
        problems = list(dict.fromkeys(self._problems))
        differing = [problem for problem in problems if not equal(fixed_parts(problem), self._fixed)]
        if len(problems) > 1:
            agree = self._agreements(job, singles)
            differing += [problem for problem, same in zip(self._problems, agree, strict=True) if not same]
        return list(dict.fromkeys(differing))

    @staticmethod
    def split(jobs: Sequence[Job], end: ChainEnd) -> list[Outcome]:
        """Return the outcome of every job."""
        if len(jobs) == len(end.risk) and jobs[0].on_step is None and jobs[0].plan.trajectory.team.ranks == 1:
            return _single_outcomes(end)
        ends = iter(_ends(end))
        pairs = [(job, [next(ends) for _ in job.states]) for job in jobs]
        return [combine(job.plan, own, online=job.on_step is not None) for job, own in pairs]

    def trial(self, job: Job, singles: Sequence[Job]) -> str | None:
        """Compare the joined risks with those of the single runs at the start; return what is wrong."""
        agree = all(self._agreements(job, singles))
        return None if agree else "run together, the runs do not give the risks that each gives alone"

    def _agreements(self, job: Job, singles: Sequence[Job]) -> list[bool]:
        """Return for every chain whether its joined risks are those that it has alone."""
        (state,), (tick,), problem = job.states, job.ticks(0), self._trajectory.problem
        with torch.no_grad():
            found = _risks(problem, state, job.hyper, tick)
            each = [
                _risks(one.plan.trajectory.problem, start, one.hyper, met)
                for one in singles
                for start, met in zip(one.states, one.ticks(0), strict=True)
            ]
        wanted = torch.stack(each)
        loose = TOLERANCE if wanted.dtype != torch.float64 else TOLERANCE**2
        agree: list[bool] = torch.isclose(found.T, wanted, rtol=loose, atol=loose, equal_nan=True).all(1).tolist()
        return agree

    def _tick(self, ticks: list[Tick]) -> Tick:
        noise = None if ticks[0].noise is None else stack([tick.noise for tick in ticks if tick.noise is not None])
        train, valid = self._join_train([t.train for t in ticks]), self._join_valid([t.valid for t in ticks])
        return Tick(train, valid, noise, None)


def stack_refusal(jobs: Sequence[Job]) -> str | None:
    """Return why rounds cannot be run as one, as far as it can be told without trying; None when they may."""
    first, plans = jobs[0], [job.plan for job in jobs]
    trajectory = first.plan.trajectory
    if any(plan.trajectory.stochastic for plan in plans):
        return "a forward draws random numbers, which are seeded run by run"
    if any(plan.trajectory.team.shards > 1 for plan in plans):
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
    if not all(same_structure(job, first) for job in jobs):
        return "the runs differ in more than data, seed, ζ and values of tensors"
    return None


def _risks(problem: Problem, state: InnerState, hyper: Params, tick: Tick) -> Tensor:
    """Return both risks, and the length of the penalty's gradient where there is one."""
    parts = [
        risk(state.params, hyper, clone(state.buffers), batch)
        for risk, batch in ((problem.train_risk, tick.train), (problem.valid_risk, tick.valid))
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


def _single_outcomes(end: ChainEnd) -> list[Outcome]:
    """Return what `combine` makes of chains that are each a run of its own, for all of them at once."""
    count = len(end.risk)
    by_path = unstack(scale(half_inverse_root(end.total), end.path_gradient)) or [Params() for _ in range(count)]
    by_risk = unstack(end.risk_gradient) or [Params() for _ in range(count)]
    parts = zip(_states(end.state, count), end.risk, end.total.sqrt(), by_risk, by_path, strict=True)
    return [Outcome([state], *others) for state, *others in parts]


def _online(jobs: Sequence[Job], stacked: Params) -> OnStep:
    """Return what moves the λ of every job, and brings the moved ones back into the stack."""

    def on_step(gradient: Params) -> None:
        index, parts = 0, unstack(gradient)
        for job in jobs:
            assert job.on_step is not None
            count = len(job.states)
            job.on_step(job.plan.trajectory.team.mean(parts[index : index + count]))
            for name, value in job.hyper.items():
                stacked[name][index : index + count] = value
            index += count

    return on_step
