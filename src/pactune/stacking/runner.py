"""`Runner` answers the requests of runs: stacked where their structure allows it, side by side otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from pactune.columns import Row
from pactune.engines.eager import Eager
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem import Problem
from pactune.problem.evaluation import Evaluation
from pactune.rounds.chain import ChainEnd
from pactune.rounds.engine import CHANGED, Engine, log
from pactune.rounds.plan import RoundOutcome, RoundRequest
from pactune.rounds.round import combine, run_chains, run_round
from pactune.stacking.batched import take_outer_steps, values_of
from pactune.stacking.layers import has_stacked_layers
from pactune.stacking.requests import EvaluationRequest, OuterStepRequest, RoundValue, ValueRequest
from pactune.stacking.shared_data import split_by_data
from pactune.stacking.stack import Stack
from pactune.stacking.stacked import StackedModels
from pactune.stacking.structure import problem_of, same_structure, stack_refusal
from pactune.threads import SHORT, one_thread
from pactune.trees import norm, norms

__all__ = ["Runner"]

T = TypeVar("T")
DIFFERENT = "they differ in more than data, seed, ζ and values of tensors"
MOST_GROUPINGS = 4  # tuned and plain runs, each before and after the first of them ends


class _Group(NamedTuple):
    """Requests of one structure, by their places among all requests; `stack` is None if they run side by side."""

    places: list[int]
    stack: Stack | None

    @property
    def stacked_problems(self) -> list[Problem]:
        """The problems that are stacked."""
        return [] if self.stack is None else self.stack.problems

    def join(self, own: list[RoundRequest]) -> list[RoundRequest]:
        """Return the requests to run in place of the group's own."""
        return own if self.stack is None else [self.stack.join(own)]

    def changed(self, own: list[RoundRequest], joined: list[RoundRequest]) -> list[Problem]:
        """Return the problems that can no longer be stacked with the others."""
        return [] if self.stack is None else self.stack.changed(joined[0], own)

    def outcomes(self, own: list[RoundRequest], ends: list[list[ChainEnd]]) -> list[RoundOutcome]:
        """Return the outcome of every request of the group, from the ends of the requests that were run."""
        if self.stack is not None:
            return self.stack.split(own, ends[0][0])
        pairs = zip(own, ends, strict=True)
        return [combine(request.plan, found, online=request.on_step is not None) for request, found in pairs]


class _Grouping(NamedTuple):
    """The groups of some requests.

    Attributes:
        groups: every request is in one of them.
        trajectories: the trajectories of the requests, kept alive so that their ids stay unique.
    """

    groups: list[_Group]
    trajectories: list[Trajectory]


@dataclass
class Runner:
    """Answers the requests of one run or of a whole grid with one engine.

    Attributes:
        engine: executes the inner steps. Steps that are short run in one thread of the CPU.
    """

    engine: Engine = field(default_factory=Eager)

    _groupings: dict[tuple[int | None, ...], _Grouping] = field(default_factory=dict, init=False)
    _stacked_with: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False)
    _evaluates_stacked: bool = field(default=True, init=False)

    def run(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Run one round of every request. Problems that the engine has marked as unrecordable run step by step."""
        unrecordable = set(self.engine.unrecordable)
        recorded = [request for request in requests if request.plan.trajectory.problem not in unrecordable]
        work = sum(request.plan.work * len(request.states) for request in requests)
        with one_thread(work <= SHORT):
            found = dict(zip(map(id, recorded), self._run_recorded(recorded), strict=True)) if recorded else {}
            return [found[id(request)] if id(request) in found else run_round(request) for request in requests]

    def _run_recorded(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Run requests whose steps the engine may record: stacked groups and single requests, side by side."""
        groups = self._groups(requests)
        members = [[requests[place] for place in group.places] for group in groups]
        joined = [group.join(own) for group, own in zip(groups, members, strict=True)]
        parts = list(zip(groups, members, joined, strict=True))
        reason = CHANGED
        try:
            changed = [problem for group, own, run in parts for problem in group.changed(own, run)]
            ends = iter([] if changed else run_chains([request for run in joined for request in run], self.engine))
        except Exception as error:  # a loss may have come to do something that vmap does not know
            online = any(request.on_step is not None for request in requests)  # λ has moved, so no step can be repeated
            changed = [] if online else [p for group in groups for p in group.stacked_problems]
            if not changed:
                raise
            first_line = str(error).partition("\n")[0]
            reason = f"run together, the runs failed with {type(error).__name__}: {first_line}"
        if changed:
            self.engine.mark_unrecordable(*changed, reason=reason)
            return self.run(requests)
        self._remember(groups, members)
        found: dict[int, RoundOutcome] = {}
        for group, own, run in parts:
            found |= zip(group.places, group.outcomes(own, [next(ends) for _ in run]), strict=True)
        return [found[place] for place in range(len(requests))]

    def values(self, requests: Sequence[ValueRequest]) -> list[RoundValue]:
        """Return the value of every round. Rounds that were stacked are read together."""
        return _in_places(self._stacked_groups(requests), lambda own: values_of([requests[i] for i in own]))

    def take_outer_steps(self, requests: Sequence[OuterStepRequest]) -> list[None]:
        """Let every λ take its outer step."""
        take_outer_steps(requests)
        return [None] * len(requests)

    def evaluate(self, requests: Sequence[EvaluationRequest]) -> list[Row]:
        """Return the columns of every evaluation. Models whose rounds are stacked are evaluated stacked."""
        with one_thread(sum(request.work for request in requests) <= SHORT):
            return _in_places(self._stacked_groups(requests), lambda own: self._evaluate([requests[i] for i in own]))

    def _evaluate(self, requests: Sequence[EvaluationRequest]) -> list[Row]:
        names = list(requests[0].sources)
        alike = len(requests) > 1 and all(list(request.sources) == names for request in requests)
        if self._evaluates_stacked and alike:
            try:
                return _evaluate_stacked(requests, names)
            except Exception as error:  # a metric may do anything that vmap does not know
                log.info("models are evaluated one by one: %s: %s", type(error).__name__, error)
                self._evaluates_stacked = False
        return [_evaluate(request) for request in requests]

    def _stacked_groups(self, requests: Sequence[EvaluationRequest] | Sequence[ValueRequest]) -> list[list[int]]:
        """Return the places of the requests, in groups whose last rounds were stacked."""
        groups: dict[tuple[int, ...], list[int]] = {}
        problems = [id(request.problem) for request in requests]
        for place, problem in enumerate(problems):
            groups.setdefault(self._stacked_with.get(problem, (problem,)), []).append(place)
        whole = {key: tuple(problems[place] for place in own) == key for key, own in groups.items()}
        return [part for key, own in groups.items() for part in ([own] if whole[key] else [[place] for place in own])]

    def _remember(self, groups: Sequence[_Group], members: Sequence[Sequence[RoundRequest]]) -> None:
        """Note which problems are stacked together in this round."""
        for group, own in zip(groups, members, strict=True):
            problems = tuple(id(request.plan.trajectory.problem) for request in own)
            for problem in problems:
                self._stacked_with[problem] = problems if group.stack is not None else (problem,)

    def _groups(self, requests: Sequence[RoundRequest]) -> list[_Group]:
        """Return the groups of these requests: the same stacks in every round, so that their recordings are found."""
        chains = sum(len(request.states) for request in requests)
        if isinstance(self.engine, Eager) or (chains == 1 and not self._stacks_alone(requests[0])):
            return [_Group(list(range(len(requests))), None)]
        trajectories = [request.plan.trajectory for request in requests]
        key = tuple(part for one in trajectories for part in _identity(one))
        known = self._groupings.get(key)
        if known is None:
            while len(self._groupings) >= MOST_GROUPINGS:
                del self._groupings[next(iter(self._groupings))]
            known = self._groupings[key] = _Grouping(_grouped(requests, self._stacks_alone), trajectories)
        return known.groups

    def _stacks_alone(self, request: RoundRequest) -> bool:
        """Return True if a single chain is faster as a stack of one: its two gradients are then one backward pass."""
        return self.engine.fuses_steps and has_stacked_layers(problem_of(request).model)


def _identity(trajectory: Trajectory) -> tuple[int | None, ...]:
    """Return numbers that are equal as long as a trajectory fits its group. The tasks of a place may change in size."""
    problem = trajectory.problem
    return id(problem), id(trajectory.objective), problem.train.size, problem.valid.size


def _in_places(groups: Sequence[list[int]], answer: Callable[[list[int]], Sequence[T]]) -> list[T]:
    """Answer group by group; return the answers in the order of the requests."""
    found = {place: one for own in groups for place, one in zip(own, answer(own), strict=True)}
    return [found[place] for place in range(len(found))]


def _grouped(requests: Sequence[RoundRequest], alone: Callable[[RoundRequest], bool]) -> list[_Group]:
    """Put requests of one structure into one group; try to stack each that has several chains or is stacked alone."""
    places: list[list[int]] = []
    for place, request in enumerate(requests):
        same = next((own for own in places if same_structure(request, requests[own[0]])), None)
        if same is None:
            places.append([place])
        else:
            same.append(place)
    places = [[own[i] for i in part] for own in places for part in split_by_data([requests[place] for place in own])]
    members = [[requests[place] for place in own] for own in places]
    several = [sum(len(request.states) for request in own) > 1 or alone(own[0]) for own in members]
    stacks = [_try_stack(own) if many else None for own, many in zip(members, several, strict=True)]
    if len(places) > 1 and any(stacks):
        log.info("runs are stacked in %d groups: %s", len(places), DIFFERENT)
    elif len(places) > 1 and not any(several):
        log.info("runs are not stacked: %s", DIFFERENT)
    return [_Group(own, stack) for own, stack in zip(places, stacks, strict=True)]


def _try_stack(requests: Sequence[RoundRequest]) -> Stack | None:
    reason = stack_refusal(requests)
    if reason is None:
        try:
            stack = Stack(requests)
            reason = stack.trial(stack.join(requests), requests)
        except Exception as error:  # a model may do anything that vmap does not know
            reason = f"{type(error).__name__}: {error}"
    if reason is None:
        return stack
    log.info("runs are not stacked: %s", reason)
    return None


def _evaluate(request: EvaluationRequest) -> Row:
    problem, at = request.problem, (request.params, request.hyper, request.buffers)
    found = {name: problem.at(*at, partial(problem.evaluate, source)) for name, source in request.sources.items()}
    return _columns(float(norm(request.params)), found)


def _evaluate_stacked(requests: Sequence[EvaluationRequest], names: Sequence[str]) -> list[Row]:
    models = StackedModels(requests)
    lengths: list[float] = norms(models.params).tolist()
    found = {name: models.evaluate(name) for name in names}
    return [_columns(length, {name: found[name][i] for name in names}) for i, length in enumerate(lengths)]


def _columns(length: float, found: Mapping[str, Evaluation]) -> Row:
    """Return the columns of a history row: ‖θ‖, then the risk and the metrics of every data set."""
    columns = {column: value for name, one in found.items() for column, value in one.columns(name).items()}
    return {"weight_norm": length, **columns}
