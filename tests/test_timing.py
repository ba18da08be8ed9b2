"""The times by which engines decide whether a recording pays."""

from collections.abc import Callable

import pytest

from pactune.engines import timing


def test_functions_are_timed_in_turn_and_the_least_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], list[str]()
    seconds = {"a": iter([5.0, 3.0, 4.0, 6.0]), "b": iter([2.0, 1.0, 7.0, 8.0])}

    def run(name: str) -> Callable[[], None]:
        def spend() -> None:
            order.append(name)
            clock[0] += next(seconds[name])

        return spend

    monkeypatch.setattr(timing, "perf_counter", lambda: clock[0])
    assert timing.least_seconds(run("a"), run("b")) == [3.0, 1.0]
    assert order == ["a", "b"] * timing.TIMED_RUNS
