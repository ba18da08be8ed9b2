"""`Runner` answers the requests of runs: stacked where their structure allows it, side by side otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pactune.columns import Row
from pactune.engines.eager import Eager
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.evaluation import Evaluation
from pactune.rounds.engine import Engine, log
from pactune.rounds.plan import RoundOutcome, RoundRequest
from pactune.rounds.round import combine, run_chains, run_round
from pactune.stacking.batched import norms, take_outer_steps, value_of, values_of
from pactune.stacking.requests import EvaluationRequest, OuterStepRequest, RoundValue, ValueRequest
from pactune.stacking.stack import Stack
from pactune.stacking.stacked import StackedModels
from pactune.stacking.structure import stack_refusal
from pactune.trees import norm

__all__ = ["Runner"]

MOST_STACKS = 4  # tuned and plain runs, each before and after the first of them ends


class _Trial(NamedTuple):
    """The result of an attempt to stack some requests.

    Attributes:
        stack: joins the requests; None if they cannot be stacked.
        trajectories: the trajectories of the requests, kept alive so that their ids stay unique.
    """

    stack: Stack | None
    trajectories: list[Trajectory]


@dataclass
class Runner:
    """Answers the requests of one run or of a whole grid with one engine.

    Attributes:
        engine: executes the inner steps.
    """

    engine: Engine = field(default_factory=Eager)

    _trials: dict[tuple[int, ...], _Trial] = field(default_factory=dict, init=False)
    _stacked: set[tuple[int, ...]] = field(default_factory=set, init=False)
    _evaluates_stacked: bool = field(default=True, init=False)

    def run(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Run one round of every request. Problems that the engine has marked as stateful run step by step."""
        recorded = [request for request in requests if request.plan.trajectory.problem not in self.engine.stateful]
        found = dict(zip(map(id, recorded), self._run_recorded(recorded), strict=True)) if recorded else {}
        return [found[id(request)] if id(request) in found else run_round(request) for request in requests]

    def _run_recorded(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Run requests whose steps the engine may record."""
        chains = sum(len(request.states) for request in requests)
        stack = self._stack(requests) if chains > 1 and not isinstance(self.engine, Eager) else None
        problems = tuple(id(request.plan.trajectory.problem) for request in requests)
        self._stacked.discard(problems)
        if stack is None:
            pairs = zip(requests, run_chains(requests, self.engine), strict=True)
            return [combine(request.plan, ends, online=request.on_step is not None) for request, ends in pairs]
        joined = stack.join(requests)
        if changed := stack.changed(joined, requests):
            for problem in changed:
                self.engine.mark_stateful(problem)
            return self.run(requests)
        self._stacked.add(problems)
        ((end,),) = run_chains([joined], self.engine)
        return stack.split(requests, end)

    def values(self, requests: Sequence[ValueRequest]) -> list[RoundValue]:
        """Return the value of every round."""
        return values_of(requests) if self._are_stacked(requests) else [value_of(request) for request in requests]

    def take_outer_steps(self, requests: Sequence[OuterStepRequest]) -> list[None]:
        """Let every λ take its outer step."""
        take_outer_steps(requests)
        return [None] * len(requests)

    def evaluate(self, requests: Sequence[EvaluationRequest]) -> list[Row]:
        """Return the columns of every evaluation. Models whose rounds are stacked are evaluated stacked."""
        names = list(requests[0].sources)
        alike = all(list(request.sources) == names for request in requests)
        if self._evaluates_stacked and alike and self._are_stacked(requests):
            try:
                return _evaluate_stacked(requests, names)
            except Exception as error:  # a metric may do anything that vmap does not know
                log.info("models are evaluated one by one: %s: %s", type(error).__name__, error)
                self._evaluates_stacked = False
        return [_evaluate(request) for request in requests]

    def _are_stacked(self, requests: Sequence[EvaluationRequest] | Sequence[ValueRequest]) -> bool:
        """Return True if the last rounds of these runs were stacked."""
        return len(requests) > 1 and tuple(id(request.problem) for request in requests) in self._stacked

    def _stack(self, requests: Sequence[RoundRequest]) -> Stack | None:
        """Return the stack of these requests: the same object in every round, so that its recordings are found."""
        trajectories = [request.plan.trajectory for request in requests]
        key = tuple(id(part) for one in trajectories for part in (one.problem, one.objective))
        known = self._trials.get(key)
        if known is None:
            while len(self._trials) >= MOST_STACKS:
                del self._trials[next(iter(self._trials))]
            known = self._trials[key] = _Trial(_try_stack(requests), trajectories)
        return known.stack


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
    problem = request.problem
    found = {name: problem.evaluate(source) for name, source in request.sources.items()}
    return _columns(float(norm(problem.parameters())), found)


def _evaluate_stacked(requests: Sequence[EvaluationRequest], names: Sequence[str]) -> list[Row]:
    models = StackedModels([request.problem for request in requests])
    lengths: list[float] = norms(models.params).tolist()
    found = {name: models.evaluate([request.sources[name] for request in requests]) for name in names}
    return [_columns(length, {name: found[name][i] for name in names}) for i, length in enumerate(lengths)]


def _columns(length: float, found: Mapping[str, Evaluation]) -> Row:
    """Return the columns of a history row: ‖θ‖, then the risk and the metrics of every data set."""
    columns = {column: value for name, one in found.items() for column, value in one.columns(name).items()}
    return {"weight_norm": length, **columns}
