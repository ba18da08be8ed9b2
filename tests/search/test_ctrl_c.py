"""Ctrl-C while `pt.tune` searches, and in its last run."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest
import torch
from torch import nn

import pactune as pt
from pactune.search.training import RowReader
from tests.search.calls import (
    NAMES,
    keeping,
    network,
    same,
    tune,
    tuning,
    weights,
)
from tests.test_interrupts import Press

pytestmark = pytest.mark.usefixtures("short_search")


@pytest.mark.parametrize("place", ["find_learning_rate", "search_scalars"])
def test_ctrl_c_in_the_search_leaves_the_model_as_it_was(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(tuning, place)

    def interrupted(*arguments: Any) -> Any:
        found = original(*arguments)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(tuning, place, interrupted)
    model = network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    before = weights(model)
    result = tune(model, inner=None)
    assert result.status == "interrupted"
    assert "nothing is chosen" in result.verdict
    assert result.model is model
    assert same(weights(model), before)
    assert result.table.empty
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_last_run_keeps_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(pt.Callback):
        def on_outer_step(self, tuner: Any, row: Any) -> None:
            signal.raise_signal(signal.SIGINT)

    original = tuning.final_fit
    monkeypatch.setattr(
        tuning, "final_fit", lambda *given, **named: original(*given, **{**named, "progress": Impatient()})
    )
    model = network()
    before = weights(model)
    result = tune(model)
    assert (result.status, len(result.rows or result.plain_rows)) == ("interrupted", 1)
    assert result.verdict.startswith("interrupted in the last run, so the model is unfinished; ")
    assert not same(weights(model), before)


@pytest.mark.parametrize(("place", "presses"), [("compare", 1), ("final_fit", 1), ("final_fit", 2)])
@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_before_the_first_step_of_the_last_run_keeps_the_search(
    name: str, place: str, presses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "compare", keeping(name))
    whole = tune()
    original = getattr(tuning, place)

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        return original(*arguments, **settings)

    monkeypatch.setattr(tuning, place, interrupted)
    model = network()
    before = weights(model)
    result = tune(model)
    assert same(weights(model), before)
    assert (result.status, result.pays, result.kept_step) == ("interrupted", whole.pays, 0)
    assert result.verdict == (
        f"interrupted in the last run before its first step, so the model is as it was; {name} would be kept"
    )
    assert result.comparison == whole.comparison


@pytest.mark.parametrize("call", [7, 40], ids=["coarse", "fine"])
def test_ctrl_c_between_rounds(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coarse search of three candidates, three models and four rounds reads 36 times."""
    original, calls = RowReader.read, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(RowReader, "read", interrupted)
    model = network()
    before = weights(model)
    assert tune(model).status == "interrupted"
    assert call <= len(calls) < call + 5  # the search ends at once
    assert same(weights(model), before)


@pytest.mark.slow
def test_ctrl_c_at_any_line_of_the_search() -> None:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(12):
        model = network(nn.Linear(4, 3), nn.Dropout(0.1))
        before, tracing = weights(model), sys.gettrace()
        sys.settrace(Press(int(torch.randint(5_000, 730_000, (), generator=generator))))  # a whole call has 790,000
        try:
            result = tune(model, inner=None)
        finally:
            sys.settrace(tracing)
        found.append("the model is as it was" in result.verdict)
        assert same(weights(model), before) == found[-1]
        assert not model.training
    assert sum(found) > 6
