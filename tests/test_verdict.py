"""A verdict says that tuning pays, that it does not, or that it is unclear, by the numbers beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pactune.results.verdict import judge_held_out, judge_run


class Run(NamedTuple):
    """The parts of a result that a verdict looks at."""

    rows: list[dict[str, Any]]
    plain_rows: list[dict[str, Any]]
    kept: dict[str, Any]


@pytest.mark.parametrize(
    ("gain", "error", "pays", "words"),
    [
        (0.02, 0.01, True, "tuning pays: "),
        (0.01, 0.01, None, "unclear whether tuning pays: "),
        (0.005, 0.01, None, "unclear whether tuning pays: "),
        (0.0, 0.01, False, "tuning does not pay: "),
        (-0.02, 0.01, False, "tuning does not pay: "),
        (0.02, 0.0, True, "tuning pays: "),
        (0.0, 0.0, False, "tuning does not pay: "),
    ],
)
def test_held_out_gain_against_its_error(gain: float, error: float, pays: bool | None, words: str) -> None:
    found = judge_held_out(gain, error)
    assert found.pays is pays
    assert found.verdict.startswith(words)
    assert f"{gain:.3f} ± {error:.3f}" in found.verdict


@pytest.mark.parametrize(
    ("column", "tuned", "plain", "pays"),
    [
        ("test_accuracy", 0.9, 0.8, True),
        ("test_accuracy", 0.8, 0.9, False),
        ("test_accuracy", 0.8, 0.8, False),
        ("test_risk", 0.3, 0.4, True),
        ("test_risk", 0.4, 0.3, False),
        ("test_risk", 0.3, 0.3, False),
    ],
)
def test_test_set_decides_where_there_is_one(column: str, tuned: float, plain: float, pays: bool) -> None:
    kept = {"objective": 1.0, column: tuned}
    found = judge_run(Run([kept], [{column: 9.0}, {column: plain}], kept))
    assert found.pays is pays
    assert ("does not pay" in found.verdict) is not pays
    assert f"{tuned:.4g}, plain training {plain:.4g}" in found.verdict


def test_accuracy_goes_before_risk() -> None:
    kept = {"test_accuracy": 0.9, "test_risk": 2.0}
    assert judge_run(Run([kept], [{"test_accuracy": 0.8, "test_risk": 1.0}], kept)).pays is True


@pytest.mark.parametrize(("last", "pays"), [(0.5, True), (1.0, False), (1.5, False)])
def test_without_a_test_set_the_objective_decides(last: float, pays: bool) -> None:
    first, kept = {"objective": 1.0}, {"objective": last}
    found = judge_run(Run([first, kept], [{}], kept))
    assert found.pays is pays
    assert ("no proof" in found.verdict) is pays


@pytest.mark.parametrize("run", [Run([], [{"test_risk": 1.0}], {}), Run([{"objective": 1.0}], [], {"objective": 1.0})])
def test_nothing_is_said_without_both_runs(run: Run) -> None:
    assert judge_run(run) == (None, "nothing to compare with plain training")
