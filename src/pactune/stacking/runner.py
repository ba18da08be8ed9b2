"""Who runs rounds: many as one where they can be stacked, side by side otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pactune.engines.eager import Eager
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.evaluation import Evaluation
from pactune.rounds.engine import Engine, log
from pactune.rounds.plan import RoundOutcome, RoundRequest
from pactune.rounds.round import combine, run_chains, run_round
from pactune.stacking.batched import move_all, norms, read_all, read_one
from pactune.stacking.requests import EvaluationRequest, OuterStepRequest, RoundValue, ValueRequest
from pactune.stacking.stack import Stack, stack_refusal
from pactune.stacking.stacked import StackedModels
from pactune.trees import norm

__all__ = ["Runner"]

MOST_STACKS = 4  # tuned and plain runs, each before and after the first of them ends


class _Known(NamedTuple):
    """What is known of some requests.

    Attributes:
        stack: what joins them, None where nothing can.
        trajectories: theirs, kept alive so that no other object gets their numbers.
    """

    stack: Stack | None
    trajectories: list[Trajectory]


@dataclass
class Runner:
    """Runs the rounds of one run or of a whole grid with one engine.

    Attributes:
        engine: how inner steps are run.
    """

    engine: Engine = field(default_factory=Eager)

    _stacks: dict[tuple[int, ...], _Known] = field(default_factory=dict, init=False)
    _joined: set[tuple[int, ...]] = field(default_factory=set, init=False)
    _evaluates_together: bool = field(default=True, init=False)

    def run(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Run one round of every request."""
        steady = [request for request in requests if request.plan.trajectory.problem not in self.engine.unrecordable]
        found = dict(zip(map(id, steady), self._run_steady(steady), strict=True)) if steady else {}
        return [found[id(request)] if id(request) in found else run_round(request) for request in requests]

    def _run_steady(self, requests: Sequence[RoundRequest]) -> list[RoundOutcome]:
        """Run requests whose problems have not been found to depend on anything that changes."""
        chains = sum(len(request.states) for request in requests)
        stack = self._stack(requests) if chains > 1 and not isinstance(self.engine, Eager) else None
        problems = tuple(id(request.plan.trajectory.problem) for request in requests)
        self._joined.discard(problems)
        if stack is None:
            pairs = zip(requests, run_chains(requests, self.engine), strict=True)
            return [combine(request.plan, ends, online=request.on_step is not None) for request, ends in pairs]
        joined = stack.join(requests)
        if changed := stack.changed(joined, requests):
            for problem in changed:
                self.engine.mark_unrecordable(problem)
            return self.run(requests)
        self._joined.add(problems)
        ((end,),) = run_chains([joined], self.engine)
        return stack.split(requests, end)

    def read(self, readings: Sequence[ValueRequest]) -> list[RoundValue]:
        """Return the numbers of every outcome."""
        return read_all(readings) if self._together(readings) else [read_one(reading) for reading in readings]

    def move(self, moves: Sequence[OuterStepRequest]) -> list[None]:
        """Move every λ."""
        move_all(moves)
        return [None] * len(moves)

    def evaluate(self, questions: Sequence[EvaluationRequest]) -> list[dict[str, float]]:
        """Evaluate the model of every question, all at once where their rounds are stacked; return their columns."""
        names = list(questions[0].sources)
        if (
            self._evaluates_together
            and self._together(questions)
            and all(list(question.sources) == names for question in questions)
        ):
            try:
                return _evaluate_stacked(questions, names)
            except Exception as error:  # a metric may do anything that vmap does not know
                log.info("models are evaluated one by one: %s: %s", type(error).__name__, error)
                self._evaluates_together = False
        return [
            _columns(float(norm(q.problem.parameters())), {n: q.problem.evaluate(s) for n, s in q.sources.items()})
            for q in questions
        ]

    def _together(self, asked: Sequence[EvaluationRequest] | Sequence[ValueRequest]) -> bool:
        """Whether the rounds of these runs are stacked."""
        return len(asked) > 1 and tuple(id(one.problem) for one in asked) in self._joined

    def _stack(self, requests: Sequence[RoundRequest]) -> Stack | None:
        """Return what joins these requests; the same one in every round, so that its recordings are found again."""
        trajectories = [request.plan.trajectory for request in requests]
        key = tuple(id(part) for one in trajectories for part in (one.problem, one.objective))
        known = self._stacks.get(key)
        if known is None:
            while len(self._stacks) >= MOST_STACKS:
                del self._stacks[next(iter(self._stacks))]
            known = self._stacks[key] = _Known(_try_stack(requests), trajectories)
        return known.stack


def _columns(length: float, found: Mapping[str, Evaluation]) -> dict[str, float]:
    columns = {column: value for name, one in found.items() for column, value in one.columns(name).items()}
    return {"weight_norm": length, **columns}


def _evaluate_stacked(questions: Sequence[EvaluationRequest], names: Sequence[str]) -> list[dict[str, float]]:
    models = StackedModels([question.problem for question in questions])
    lengths: list[float] = norms(models.params).tolist()
    found = {name: models.evaluate([q.sources[name] for q in questions]) for name in names}
    return [_columns(length, {name: found[name][i] for name in names}) for i, length in enumerate(lengths)]


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
