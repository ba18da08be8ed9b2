"""The keys of a grid are arguments of `build`, and no key takes the name of a history's column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pactune as pt
from pactune.columns import COLUMNS, PREFIXES
from tests.mistakes import Case, X, Y, check_refused, problem, tuner

S, R = pt.SettingError, pt.RunFolderError


def build(zeta: float = 0.1, **others: Any) -> pt.Tuner:
    return tuner(objective=pt.PACBayes(zeta))


def grid(values: Any, maker: Any = build, **changes: Any) -> Any:
    return pt.fit_grid(maker, values, outer_steps=1, **changes)


def measured(**changes: Any) -> pt.Tuner:
    return tuner(problem(metrics=lambda m, b: {"margin": 0.0}))


def sweep(values: Any) -> Any:
    from pactune.tuning.cells import scalar_cells

    return scalar_cells(values)


CASES: dict[str, Case] = {
    "key that is a column": Case(lambda: grid({"objective": [1]}), S, "must not be 'objective'.*hypergradient_norm"),
    "key outer_step": Case(lambda: grid([{"outer_step": 1}]), S, "must not be 'outer_step'"),
    "key weight_norm": Case(lambda: grid({"weight_norm": [1]}), S, "must not be 'weight_norm'"),
    "key with a prefix": Case(lambda: grid({"test_accuracy": [1]}), S, "must not be 'test_accuracy'"),
    "key named like the metric": Case(lambda: grid({"accuracy": [1]}), S, "must not be 'accuracy'"),
    "key named like a metric of the user": Case(lambda: grid({"margin": [1]}, measured), S, "must not be 'margin'"),
    "key that is no name": Case(lambda: grid({"a b": [1]}), S, "must be the name of an argument of `build`"),
    "key a number": Case(lambda: grid([{1: 2}]), S, "must be the name of an argument"),
    "key that build lacks": Case(lambda: grid({"x": [1]}, lambda zeta: build()), S, "`build` must be a function of x"),
    "test of other keys": Case(lambda: grid({"zeta": [0.1]}, test=lambda x: (X, Y)), S, "`test` must be a function of"),
    "captured grid on a CPU": Case(lambda: grid({"zeta": [0.1]}, engine="captured"), S, "the model is on cpu"),
    "key of a sweep": Case(lambda: sweep({"weight_norm": [1]}), S, "must not be 'weight_norm'"),
    "a long cell": Case(lambda: grid({"word": ["a" * 300]}, run_dir="runs"), R, "have at most 200 bytes"),
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_gets_a_clear_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(CASES[name])


def test_nothing_runs_before_a_grid_key_is_refused() -> None:
    calls = []

    def counting(**cell: Any) -> pt.Tuner:
        calls.append(cell)
        return build()

    with pytest.raises(S, match="must not be 'risk'"):
        grid({"risk": [1]}, counting)
    assert not calls


@pytest.mark.parametrize("online", [False, True])
def test_every_column_of_a_history_is_a_name_that_grids_refuse(online: bool) -> None:
    result = tuner(problem(metrics=lambda m, b: {"margin": 0.5}), online=online).fit(2, test=(X, Y))
    found = {*result.history.columns, *result.plain.columns}
    assert {"objective", "valid_margin"} <= found
    assert {name for name in found if not name.startswith(PREFIXES)} <= COLUMNS, "add the new column to `columns.py`"
