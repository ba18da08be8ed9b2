"""Runs that cannot be stacked have recordings of their own, and keep them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.engines import traced

RUNS, MOST = 5, 4


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an element per recorded function."""
    found: list[int] = []

    def counted(*arguments: Any, **named: Any) -> Any:
        found.append(1)
        return original(*arguments, **named)

    original = traced.trace
    monkeypatch.setattr(traced, "trace", counted)
    return found


def data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return x, (x.mean((1, 2, 3)) > 0).long()


def test_the_runs_of_a_grid_are_recorded_once(traces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "MOST_RECORDINGS", MOST)  # fewer than there are runs

    def build(seed: int) -> pt.Tuner:
        torch.manual_seed(seed)
        model, (x, y) = convolutions(), data(12)
        hyper = pt.WeightDecay(model, per="tensor")
        problem = pt.Problem(model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), loss=cross_entropy)
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        return pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=6, outer=outer, objective=pt.PACBayes(0.1))

    counts = []
    for outer_steps in (2, 4):
        pt.fit_grid(build, {"seed": range(RUNS)}, outer_steps=outer_steps, engine="traced", plain_steps=0)
        counts.append(len(traces))
        traces.clear()
    assert counts[0] == counts[1] >= RUNS


def test_the_search_records_no_runs_that_are_not_stacked(traces: list[int]) -> None:
    torch.manual_seed(0)
    pt.tune(convolutions(), data(18), loss=cross_entropy, folds=3, inner_steps=2, progress=False)
    assert not traces
