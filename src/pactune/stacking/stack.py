"""Several rounds as one round with a single chain, and its end as the outcomes of all rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pactune.engines.graph_options import GraphOptions
from pactune.engines.snapshots import problem_snapshot, snapshots_equal
from pactune.hypergradient.records import InnerState, StepData
from pactune.parallel import SINGLE_RANK
from pactune.problem import Problem
from pactune.problem.data import Batch
from pactune.problem.data.source import BatchesAnew
from pactune.problem.inner_problem import InnerProblem
from pactune.rounds.chain import ChainEnd
from pactune.rounds.online import half_inverse_root
from pactune.rounds.plan import RoundOutcome, RoundPlan, RoundRequest
from pactune.rounds.round import combine
from pactune.stacking.layers import only_products
from pactune.stacking.online import StackedOnlineSteps
from pactune.stacking.stacked import StackedProblem, StackedRows
from pactune.stacking.structure import problem_of
from pactune.trees import Params, clone, scale, stack, unstack

__all__ = ["Stack"]

EXACT = GraphOptions(tf32=False)  # in TF32 the convolutions of single runs differ from the products of stacked ones
TOLERANCE = 3e-4  # relative, in float32, between risks of stacked and single runs; rounding is far below


class Stack:
    """Joins the rounds of several runs, chains included, into one round.

    Args:
        requests: rounds that `stack_refusal` accepts.
    """

    def __init__(self, requests: Sequence[RoundRequest]) -> None:
        self._problems = [problem_of(request) for request in requests for _ in request.states]
        self._sharing: dict[tuple[int, ...], list[Problem]] = {}
        for problem in dict.fromkeys(self._problems):
            self._sharing.setdefault(problem.functions, []).append(problem)
        self._fixed = problem_snapshot(self._problems[0])
        self._plans: tuple[RoundPlan, RoundPlan] | None = None  # of the first request, and of the stack
        trajectory, self._problem = requests[0].plan.trajectory, StackedProblem(self._problems)
        defaults = [request.plan.trajectory.default_hyper for request in requests for _ in request.states]
        self._trajectory = replace(
            trajectory,
            problem=self._problem,
            ranks=SINGLE_RANK,  # chains of other ranks join after the split
            default_hyper=stack([default for default in defaults if default is not None]) if defaults[0] else None,
        )

    @property
    def problems(self) -> list[Problem]:
        """The problems of the stack, each once."""
        return self._problem.members

    def join(self, requests: Sequence[RoundRequest]) -> RoundRequest:
        """Return one request whose single chain stands for all chains of all requests."""
        first = requests[0]
        states = [state for request in requests for state in request.states]
        draws = [draw for request in requests for draw in request.drawn or ()]
        hyper = stack([request.hyper for request in requests for _ in request.states])
        if self._plans is None or self._plans[0] is not first.plan:
            self._plans = first.plan, replace(first.plan, trajectory=self._trajectory)
        return RoundRequest(
            self._plans[1],
            [_stack_states(states)],
            hyper,
            lambda t: [self._joined_data([data for request in requests for data in request.step_data_at(t)])],
            BatchesAnew(partial(self._joined_risk_batches, requests)),
            None if first.drawn is None else [_stack_draws(draws)],
            None if first.on_step is None else StackedOnlineSteps(requests, hyper),
            first.phase,
            min(request.position for request in requests),
        )

    def _joined_risk_batches(self, requests: Sequence[RoundRequest]) -> Iterator[Batch]:
        """Join the rows of all requests for the risk at θ_T, once per chain."""
        sample = self._trajectory.risk_sample
        assert isinstance(sample, StackedRows)
        for batches in zip(*(request.risk_batches for request in requests), strict=True):
            yield sample.join([one for one, request in zip(batches, requests, strict=True) for _ in request.states])

    def changed(self, joined: RoundRequest, requests: Sequence[RoundRequest]) -> list[Problem]:
        """Return the problems that have come to differ from the first one since they were stacked.

        A loss may read anything, so problems of different runs are also compared by their risks. Folds and tasks of one
        problem have the same modules and losses; they cannot come to differ. The engine notices that they all change.
        """
        groups = self._sharing.values()
        if len(groups) == 1:
            return []
        differing = [p for own in groups if not snapshots_equal(problem_snapshot(own[0]), self._fixed) for p in own]
        agree = self._agreements(joined, requests)
        differing += [problem for problem, same in zip(self._problems, agree, strict=True) if not same]
        return list(dict.fromkeys(differing))

    @staticmethod
    def split(requests: Sequence[RoundRequest], end: ChainEnd) -> list[RoundOutcome]:
        """Return the outcome of every request."""
        first = requests[0]
        if len(requests) == len(end.risk) and first.on_step is None and first.plan.trajectory.ranks.count == 1:
            return _single_outcomes(end)
        ends = iter(_ends(end))
        pairs = [(request, [next(ends) for _ in request.states]) for request in requests]
        return [combine(request.plan, own, online=request.on_step is not None) for request, own in pairs]

    def trial(self, joined: RoundRequest, requests: Sequence[RoundRequest]) -> str | None:
        """Compare the stacked risks at the start with those of the single runs; return a reason if they differ."""
        with only_products():
            agree = all(self._agreements(joined, requests))
        return None if agree else "run together, the runs do not give the risks that each gives alone"

    def _agreements(self, request: RoundRequest, singles: Sequence[RoundRequest]) -> list[bool]:
        """Return True for every chain whose stacked risks equal those that it has alone."""
        (state,), (data,) = request.states, request.step_data_at(0)
        with torch.no_grad(), EXACT.precision():
            found = _risks(self._problem, state, request.hyper, data)
            each = [
                _risks(one.plan.trajectory.problem, start, one.hyper, met)
                for one in singles
                for start, met in zip(one.states, one.step_data_at(0), strict=True)
            ]
        wanted = torch.stack(each)
        loose = TOLERANCE if wanted.dtype != torch.float64 else TOLERANCE**2
        agree: list[bool] = torch.isclose(found.T, wanted, rtol=loose, atol=loose, equal_nan=True).all(1).tolist()
        return agree

    def _joined_data(self, step_data: list[StepData]) -> StepData:
        noise = (
            None if step_data[0].noise is None else stack([data.noise for data in step_data if data.noise is not None])
        )
        train = self._problem.train.join([data.train for data in step_data])
        valid = self._problem.valid.join([data.valid for data in step_data])
        return StepData(train, valid, noise, None)


def _risks(problem: InnerProblem, state: InnerState, hyper: Params, data: StepData) -> Tensor:
    """Return both risks, and squared norms of what else a step computes.

    These are the buffers after a training forward, the penalty's gradient and θ after a proximal step, if any.
    """
    buffers = clone(state.buffers)
    parts = [
        problem.train_risk(state.params, hyper, buffers, data.train),
        problem.valid_risk(state.params, hyper, clone(state.buffers), data.valid),
    ]
    floats = {name: value for name, value in buffers.items() if value.is_floating_point()}
    trees = [floats] if floats else []
    trees += [problem.penalty_gradient(state.params, hyper)] if problem.has_penalty else []
    trees += [problem.prox(state.params, dict.fromkeys(state.params, 1.0), hyper)] if problem.has_prox else []
    for tree in trees:
        squares = [value.square() for value in tree.values()]
        axes = [tuple(range(len(problem.runs), value.ndim)) for value in squares]
        parts.append(torch.stack([v.sum(axis) if axis else v for v, axis in zip(squares, axes, strict=True)]).sum(0))
    return torch.stack(parts)


def _stack_states(states: Sequence[InnerState]) -> InnerState:
    slots = {slot: stack([state.slots[slot] for state in states]) for slot in states[0].slots}
    params, buffers = stack([state.params for state in states]), stack([state.buffers for state in states])
    return InnerState(params, slots, buffers, states[0].step)


def _stack_draws(draws: Sequence[Params]) -> Params:
    """Return the draws from P_0 of all chains. Tasks and folds have one draw, which need not be copied for each."""
    if all(draw is draws[0] for draw in draws):
        return {name: value.expand(len(draws), *value.shape) for name, value in draws[0].items()}
    return stack(draws)


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
    """Return the outcomes of runs with one chain each. The result is that of `combine`, in one pass."""
    count = len(end.risk)
    path_gradient = scale(half_inverse_root(end.total), end.path_gradient) if end.path_gradient else {}
    whole = RoundOutcome([], end.risk, end.total.sqrt(), end.risk_gradient, path_gradient)
    by_risk, by_path = (
        unstack(tree) or [Params() for _ in range(count)] for tree in (end.risk_gradient, path_gradient)
    )
    states, roots = _states(end.state, count), whole.regularizer
    parts = zip(states, end.risk.unbind(), roots.unbind(), by_risk, by_path, strict=True)
    return [RoundOutcome([state], risk, root, a, b, stack=whole) for state, risk, root, a, b in parts]
