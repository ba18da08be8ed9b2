"""Several runs in step: what they ask for is answered for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from pactune.interrupts import check_interrupt, deferred_interrupts, take_interrupt
from pactune.rounds.plan import RoundRequest
from pactune.stacking.requests import EvaluationRequest, OuterStepRequest, ValueRequest
from pactune.stacking.runner import Runner

__all__ = ["RequestGenerator", "run_in_lockstep"]

T = TypeVar("T")
Request = RoundRequest | ValueRequest | EvaluationRequest | OuterStepRequest
RequestGenerator = Generator[Request, Any, T]
"""Code that asks for rounds and what comes between them, and returns a T; who answers decides how they are run."""


def run_in_lockstep(
    runs: Sequence[RequestGenerator[T]], runner: Runner, *, interrupted: Callable[[T], bool] = lambda _: False
) -> list[T]:
    """Run several runs in step: of what they ask for, what is of one kind together.

    Runs that are behind others, as after a resume, catch up first and by themselves. So each round is stacked with the
    same runs as without the interruption.

    Whatever happens in a round happens where it was asked for. Ctrl-C is raised in the rounds and evaluations alone.

    Args:
        runs: the runs.
        runner: answers their requests.
        interrupted: tells by the result of a run whether Ctrl-C ended it. All other runs then end too.
    """
    with deferred_interrupts():
        return _run(runs, runner, interrupted)


def _run(runs: Sequence[RequestGenerator[T]], runner: Runner, interrupted: Callable[[T], bool]) -> list[T]:
    ended: dict[int, T] = {}
    waiting: dict[int, Request] = {}
    places = dict.fromkeys(range(len(runs)), -1)  # the position of the last round that each run asked for

    def go_on(index: int, step: Callable[[], Request]) -> None:
        try:
            waiting[index] = asked = step()
        except StopIteration as end:
            ended[index] = end.value
        else:
            places[index] = asked.position if isinstance(asked, RoundRequest) else places[index]

    def turn(index: int) -> tuple[int, int]:
        return _turn(waiting[index]), places[index]

    for index, run in enumerate(runs):
        go_on(index, partial(next, run))
    while waiting:
        first = min(turn(index) for index in waiting)
        group = sorted(index for index in waiting if turn(index) == first)  # always the same stack
        asked = [waiting.pop(index) for index in group]
        try:
            check_interrupt()
            if any(interrupted(result) for result in ended.values()):
                raise KeyboardInterrupt
            outcomes = _answers(asked, runner)
        except BaseException as raised:
            # Ctrl-C also ends the workers of a DataLoader, which fails before the interrupt is raised here.
            error = KeyboardInterrupt() if take_interrupt() else raised
            for index in group:
                go_on(index, partial(runs[index].throw, error))
        else:
            for index, outcome in zip(group, outcomes, strict=True):
                go_on(index, partial(runs[index].send, outcome))
    return [ended[index] for index in range(len(runs))]


def _turn(asked: Request) -> int:
    """Return what comes first of what runs wait for: rounds last, so that all runs meet there."""
    kinds = (ValueRequest, EvaluationRequest, OuterStepRequest)
    return next((turn for turn, kind in enumerate(kinds) if isinstance(asked, kind)), 3 + _is_tuned(asked))


def _is_tuned(asked: Request) -> bool:
    return isinstance(asked, RoundRequest) and asked.plan.derivatives


def _answers(asked: Sequence[Any], runner: Runner) -> Sequence[Any]:
    """Answer requests of one kind."""
    methods: dict[type, Callable[[Sequence[Any]], Sequence[Any]]] = {
        ValueRequest: runner.read,
        EvaluationRequest: runner.evaluate,
        OuterStepRequest: runner.move,
        RoundRequest: runner.run,
    }
    return methods[type(asked[0])](asked)
