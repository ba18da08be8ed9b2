"""Several runs in lockstep: the runner answers their requests together."""

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
Requests = list[RoundRequest] | list[ValueRequest] | list[EvaluationRequest] | list[OuterStepRequest]
RequestGenerator = Generator[Requests, Any, T]
"""A run as a generator: it yields lists of requests of one kind and receives the lists of their answers.

So a scheduler can batch several runs. A run has several requests at once if several problems share its λ.
"""


def run_in_lockstep(
    runs: Sequence[RequestGenerator[T]], runner: Runner, *, interrupted: Callable[[T], bool] = lambda _: False
) -> list[T]:
    """Run several runs to their end and answer their requests of one kind together.

    Runs that are behind the others, as after a resume, catch up first and alone. So each round is stacked with the
    same runs as without the interruption.

    An error in an answer is raised in the runs that wait for it. Ctrl-C is raised only there.

    Args:
        runs: the runs.
        runner: answers their requests.
        interrupted: returns True for the result of a run that Ctrl-C ended. All other runs then end too.

    Returns:
        The results of the runs, in their order.
    """
    with deferred_interrupts():
        return _run(runs, runner, interrupted)


def _run(runs: Sequence[RequestGenerator[T]], runner: Runner, interrupted: Callable[[T], bool]) -> list[T]:
    results: dict[int, T] = {}
    waiting: dict[int, Requests] = {}
    positions = dict.fromkeys(range(len(runs)), -1)  # of the last round that each run requested

    def advance(index: int, step: Callable[[], Requests]) -> None:
        try:
            waiting[index] = requests = step()
        except StopIteration as end:
            results[index] = end.value
        else:
            first = requests[0]
            positions[index] = first.position if isinstance(first, RoundRequest) else positions[index]

    def order(index: int) -> tuple[int, int]:
        return _priority(waiting[index]), positions[index]

    for index, run in enumerate(runs):
        advance(index, partial(next, run))
    while waiting:
        orders = {index: order(index) for index in waiting}
        first = min(orders.values())
        group = sorted(index for index in orders if orders[index] == first)  # sorted, so that a stack is found again
        requests = [waiting.pop(index) for index in group]
        try:
            check_interrupt()
            if any(interrupted(result) for result in results.values()):
                raise KeyboardInterrupt
            answers = _answers(requests, runner)
        except BaseException as raised:
            # Ctrl-C also ends the workers of a DataLoader, which fails before the interrupt is raised here.
            error = KeyboardInterrupt() if take_interrupt() else raised
            for index in group:
                advance(index, partial(runs[index].throw, error))
        else:
            for index, own in zip(group, answers, strict=True):
                advance(index, partial(runs[index].send, own))
    return [results[index] for index in range(len(runs))]


def _priority(requests: Requests) -> int:
    """Return the priority of requests. Rounds come last, so that all runs reach their round together."""
    kinds = (ValueRequest, EvaluationRequest, OuterStepRequest)
    return next((order for order, kind in enumerate(kinds) if isinstance(requests[0], kind)), 3 + _is_tuned(requests))


def _is_tuned(requests: Requests) -> bool:
    """Return True for the rounds of a tuned run; plain training asks for no derivatives."""
    return isinstance(requests[0], RoundRequest) and requests[0].plan.derivatives


def _answers(requests: Sequence[Requests], runner: Runner) -> list[list[Any]]:
    """Answer the requests of several runs, all of one kind, together."""
    methods: dict[type, Callable[[Sequence[Any]], Sequence[Any]]] = {
        ValueRequest: runner.values,
        EvaluationRequest: runner.evaluate,
        OuterStepRequest: runner.take_outer_steps,
        RoundRequest: runner.run,
    }
    answers = iter(methods[type(requests[0][0])]([one for own in requests for one in own]))
    return [[next(answers) for _ in own] for own in requests]
