"""Outer optimizers of one kind step as one; one that has to step by itself does, with its hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pactune.stacking.batched import take_outer_steps
from pactune.stacking.requests import OuterStepRequest

pytestmark = pytest.mark.slow

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MAKERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
}


def optimizers(make: Make, number: int = 3) -> list[torch.optim.Optimizer]:
    found = []
    for k in range(number):
        parameter = nn.Parameter(torch.tensor([1.0 + k, -2.0]))
        parameter.grad = torch.tensor([0.5, -1.0 * k])
        found.append(make([parameter]))
    return found


def values(found: list[torch.optim.Optimizer]) -> list[Any]:
    return [one.param_groups[0]["params"][0].tolist() for one in found]


def step_all(found: list[torch.optim.Optimizer], times: int = 2) -> None:
    for _ in range(times):
        take_outer_steps([OuterStepRequest(one) for one in found])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Count the calls of `RMSprop.step`."""
    calls: list[object] = []
    step = torch.optim.RMSprop.step

    def count(self: torch.optim.RMSprop, closure: Any = None) -> Any:
        calls.append(self)
        return step(self, closure)

    monkeypatch.setattr(torch.optim.RMSprop, "step", count)
    return calls


@pytest.mark.parametrize("name", MAKERS)
def test_joint_steps_are_the_steps_of_each(name: str) -> None:
    joint, single = optimizers(MAKERS[name]), optimizers(MAKERS[name])
    step_all(joint)
    for _ in range(2):
        for one in single:
            one.step()
    assert values(joint) == values(single)


def test_optimizers_of_one_kind_step_in_one_call(counted: list[object]) -> None:
    step_all(optimizers(MAKERS["RMSprop"]), times=1)
    assert len(counted) == 1


def test_optimizers_of_two_kinds_step_in_two_calls(counted: list[object]) -> None:
    rates = iter((0.1, 0.2, 0.1))
    step_all(optimizers(lambda p: torch.optim.RMSprop(p, lr=next(rates))), times=1)
    assert len(counted) == 2


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_run_for_every_optimizer_that_has_them(register: str) -> None:
    found, ran = optimizers(MAKERS["SGD"]), []
    for one in found:
        getattr(one, register)(lambda optimizer, *_: ran.append(optimizer))
    step_all(found, times=1)
    assert ran == found


def test_a_learning_rate_in_a_tensor_is_stepped_by_itself(counted: list[object]) -> None:
    step_all(optimizers(lambda p: torch.optim.RMSprop(p, lr=torch.tensor(0.1))), times=1)
    assert len(counted) == 3
