"""Who runs rounds: many as one where they can be stacked, side by side otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pactune.engine.base import Engine, log
from pactune.engine.eager import Eager
from pactune.engine.plan import Job, Move, Outcome, Question, Reading, Reported
from pactune.engine.rounds import combine, run_chains, run_round
from pactune.engine.stack import Stack, stack_refusal
from pactune.engine.stacked import StackedModels
from pactune.engine.together import move_all, norms, read_all, read_one
from pactune.evaluation import Evaluation
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import norm

__all__ = ["Runner"]

MOST_STACKS = 4  # tuned and plain runs, each before and after the first of them ends


class _Known(NamedTuple):
    """What is known of some jobs.

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

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run one round of every job."""
        steady = [job for job in jobs if job.plan.trajectory.problem not in self.engine.stateful]
        found = dict(zip(map(id, steady), self._run_steady(steady), strict=True)) if steady else {}
        return [found[id(job)] if id(job) in found else run_round(job) for job in jobs]

    def _run_steady(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run jobs whose problems have not been found to depend on anything that changes."""
        chains = sum(len(job.states) for job in jobs)
        stack = self._stack(jobs) if chains > 1 and not isinstance(self.engine, Eager) else None
        problems = tuple(id(job.plan.trajectory.problem) for job in jobs)
        self._joined.discard(problems)
        if stack is None:
            pairs = zip(jobs, run_chains(jobs, self.engine), strict=True)
            return [combine(job.plan, ends, online=job.on_step is not None) for job, ends in pairs]
        joined = stack.join(jobs)
        if changed := stack.changed(joined, jobs):
            for problem in changed:
                self.engine.mark_stateful(problem)
            return self.run(jobs)
        self._joined.add(problems)
        ((end,),) = run_chains([joined], self.engine)
        return stack.split(jobs, end)

    def read(self, readings: Sequence[Reading]) -> list[Reported]:
        """Return the numbers of every outcome."""
        return read_all(readings) if self._together(readings) else [read_one(reading) for reading in readings]

    def move(self, moves: Sequence[Move]) -> list[None]:
        """Move every λ."""
        move_all(moves)
        return [None] * len(moves)

    def evaluate(self, questions: Sequence[Question]) -> list[dict[str, float]]:
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

    def _together(self, asked: Sequence[Question] | Sequence[Reading]) -> bool:
        """Whether the rounds of these runs are stacked."""
        return len(asked) > 1 and tuple(id(one.problem) for one in asked) in self._joined

    def _stack(self, jobs: Sequence[Job]) -> Stack | None:
        """Return what joins these jobs; the same one in every round, so that its recordings are found again."""
        trajectories = [job.plan.trajectory for job in jobs]
        key = tuple(id(part) for one in trajectories for part in (one.problem, one.objective))
        known = self._stacks.get(key)
        if known is None:
            while len(self._stacks) >= MOST_STACKS:
                del self._stacks[next(iter(self._stacks))]
            known = self._stacks[key] = _Known(_try_stack(jobs), trajectories)
        return known.stack


def _columns(length: float, found: Mapping[str, Evaluation]) -> dict[str, float]:
    columns = {column: value for name, one in found.items() for column, value in one.columns(name).items()}
    return {"weight_norm": length, **columns}


def _evaluate_stacked(questions: Sequence[Question], names: Sequence[str]) -> list[dict[str, float]]:
    models = StackedModels([question.problem for question in questions])
    lengths: list[float] = norms(models.params).tolist()
    found = {name: models.evaluate([q.sources[name] for q in questions]) for name in names}
    return [_columns(length, {name: found[name][i] for name in names}) for i, length in enumerate(lengths)]


def _try_stack(jobs: Sequence[Job]) -> Stack | None:
    reason = stack_refusal(jobs)
    if reason is None:
        try:
            stack = Stack(jobs)
            reason = stack.trial(stack.join(jobs), jobs)
        except Exception as error:  # a model may do anything that vmap does not know
            reason = f"{type(error).__name__}: {error}"
    if reason is None:
        return stack
    log.info("runs are not stacked: %s", reason)
    return None
