"""What is alike, and what is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.engines.snapshots import ChangeDetector, same_content, snapshot, snapshots_equal


def power(p: Any) -> Any:
    return lambda x: x**p


def with_default(p: Any) -> Any:
    def function(x: Any, exponent: Any = p) -> Any:
        return x**exponent

    return function


class Holder(nn.Module):
    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)

    def call(self) -> None:
        """Do nothing."""


class Opaque:
    """Something of which nothing is known."""


PAIRS: dict[str, tuple[Any, Any, bool]] = {
    "numbers": (1.0, 1.0, True),
    "numbers of two kinds": (1, 1.0, False),
    "closures": (power(2), power(2), True),
    "closures of other values": (power(2), power(3), False),
    "closures of tensors": (power(torch.ones(2)), power(torch.zeros(2)), False),
    "defaults": (with_default(2), with_default(3), False),
    "partials": (partial(cross_entropy, label_smoothing=0.1), partial(cross_entropy, label_smoothing=0.1), True),
    "partials of other values": (partial(cross_entropy), partial(cross_entropy, label_smoothing=0.1), False),
    "modules": (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(), True),
    "modules with other settings": (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), False),
    "modules with other weights": (nn.Linear(2, 2), nn.Linear(2, 2), False),
    "methods": (Holder(power=2).call, Holder(power=2).call, True),
    "methods of others": (Holder(power=2).call, Holder(power=3).call, False),
    "dynamics": (pt.Adam(lr=1e-2), pt.Adam(lr=1e-2), True),
    "dynamics with another step": (pt.Adam(lr=1e-2), pt.Adam(lr=2e-2), False),
    "schedules": (pt.SGD(lr=lambda step: 0.1), pt.SGD(lr=lambda step: 0.2), False),
    "lists": ([1, [2, 3]], [1, [2, 4]], False),
    "tables": ({"a": 1}, {"a": 1}, True),
    "tables in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
    "tensors of two types": (torch.ones(2), torch.ones(2).double(), False),
    "arrays": (np.ones(2), np.ones(2), False),
    "unknown": (Opaque(), Opaque(), False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    a, b, expected = PAIRS[name]
    assert same_content(a, b) is expected
    assert same_content(a, a)


def test_things_that_hold_each_other() -> None:
    def ring(value: int) -> list[Any]:
        first: list[Any] = [value]
        first.append([first])
        return first

    assert same_content(ring(1), ring(1))
    assert not same_content(ring(1), ring(2))


def test_a_function_that_is_not_complete() -> None:
    def make() -> Any:
        def function() -> Any:
            return later

        if False:
            later = 1
        return function

    assert not same_content(make(), make())


def test_changes_before_and_during_a_step_are_noticed(make: Any) -> None:
    problem, detector = make(nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(0.1))).problem, ChangeDetector()

    def move_parameters() -> None:
        with torch.no_grad():
            for value in problem.model.parameters():
                value.add_(1.0)

    def change_slope() -> None:
        problem.model[1].negative_slope += 0.1

    assert detector.run(move_parameters, [problem]) == []
    assert detector.run(change_slope, [problem]) == [problem]
    assert detector.run(move_parameters, [problem]) == [problem]  # not as it was first seen


def test_an_object_of_unknown_kind_is_watched_by_what_it_holds() -> None:
    holder = Opaque()
    before = snapshot(holder)
    holder.tau = 1.0  # type: ignore[attr-defined]
    assert not snapshots_equal(snapshot(holder), before)
    assert snapshots_equal(snapshot(holder), snapshot(holder))


def test_a_snapshot_of_a_huge_object_ends() -> None:
    holder = Opaque()
    holder.values = [[i] for i in range(100_000)]  # type: ignore[attr-defined]
    assert snapshots_equal(snapshot(holder), snapshot(holder))
