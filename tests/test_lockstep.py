"""Runs in lockstep: requests of one kind are answered together, rounds last, and errors reach the runs that wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from pactune.rounds.plan import RoundPlan, RoundRequest
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.requests import EvaluationRequest, OuterStepRequest, ValueRequest
from pactune.stacking.runner import Runner


class Notes(Runner):
    """Answers with the number of the request, and notes what was asked for together."""

    def __init__(self, *, fails: str = "") -> None:
        super().__init__()
        self.groups: list[tuple[str, int]] = []
        self._fails = fails

    def _answer(self, kind: str, asked: Sequence[Any]) -> list[Any]:
        self.groups.append((kind, len(asked)))
        if kind == self._fails:
            raise ArithmeticError(kind)
        return list(range(len(asked)))

    def run(self, requests: Sequence[Any]) -> list[Any]:
        return self._answer("tuned" if requests[0].plan.derivatives else "plain", requests)

    def values(self, requests: Sequence[Any]) -> list[Any]:
        return self._answer("values", requests)

    def evaluate(self, requests: Sequence[Any]) -> list[Any]:
        return self._answer("evaluate", requests)

    def take_outer_steps(self, requests: Sequence[Any]) -> list[Any]:
        return self._answer("outer steps", requests)


NOTHING = cast(Any, None)


def request(*, tuned: bool = True) -> RoundRequest:
    plan = RoundPlan(NOTHING, 1, 0.0, NOTHING, NOTHING, derivatives=tuned)
    return RoundRequest(plan, [], {}, lambda _: [], [])


def run(*, plain: bool, seen: list[Any], rounds: int = 2) -> Iterator[Any]:
    """Ask in the order of an outer step."""
    for _ in range(rounds):
        yield [OuterStepRequest(NOTHING)]
        seen += yield [request()]
        yield [ValueRequest(NOTHING, NOTHING, 0.0)]
        if plain:
            yield [request(tuned=False)]
        yield [EvaluationRequest(NOTHING, {}, {}, {}, {})]
    return "end"


def test_runs_of_different_length_meet_at_their_rounds() -> None:
    notes, seen = Notes(), [[], [], []]
    ends = run_in_lockstep([run(plain=index == 1, seen=seen[index]) for index in range(3)], notes)
    assert ends == ["end"] * 3
    assert seen == [[0, 0], [1, 1], [2, 2]]
    once = [("outer steps", 3), ("tuned", 3), ("values", 3), ("evaluate", 2)]
    assert notes.groups[:4] == once
    assert [count for kind, count in notes.groups if kind == "tuned"] == [3, 3]
    assert [count for kind, count in notes.groups if kind == "plain"] == [1, 1]


def test_a_run_with_several_problems_gets_an_answer_for_each() -> None:
    def shared(count: int) -> Iterator[Any]:
        return (yield [request() for _ in range(count)])

    notes = Notes()
    assert run_in_lockstep([shared(2), shared(1), shared(3)], notes) == [[0, 1], [2], [3, 4, 5]]
    assert notes.groups == [("tuned", 6)]


def test_an_error_arrives_where_it_was_asked_for() -> None:
    def careful() -> Iterator[Any]:
        try:
            yield [request()]
        except ArithmeticError as error:
            return f"caught {error}"

    assert run_in_lockstep([careful(), careful()], Notes(fails="tuned")) == ["caught tuned"] * 2
    with pytest.raises(ArithmeticError, match="values"):
        run_in_lockstep([run(plain=False, seen=[])], Notes(fails="values"))
