"""A resumed run compares the globals and class attributes that its model and loss read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import pactune as pt

SCALE = 1.0
CONFIG = {"tau": 1.0}
WEIGHT = torch.ones(3)
TEACHER = nn.Linear(3, 3)
OPTIONS = SimpleNamespace(tau=1.0)
bend = F.relu


def scaled(x: Tensor) -> Tensor:
    return SCALE * x


class Scaled(nn.Module):
    """A model whose forward calls a function that reads a global."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(scaled(x))


SCALED: dict[str, Any] = {"model": Scaled}


def test_a_change_of_a_global_that_the_forward_reads(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(SCALED, 1)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(pt.RunFolderError, match=r"SCALE was '1\.0', is '2\.0'"):
        start(SCALED, 2)


def reads_globals(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(bend(TEACHER(output)) / CONFIG["tau"] / OPTIONS.tau, target, weight=WEIGHT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONFIG", {"tau": 2.0}),
        ("WEIGHT", torch.tensor([1.0, 1.0, 2.0])),
        ("TEACHER", nn.Linear(3, 3)),
        ("OPTIONS", SimpleNamespace(tau=2.0)),
        ("bend", F.gelu),
    ],
)
def test_a_change_of_a_global_that_a_loss_reads(
    name: str, value: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start({"loss": reads_globals}, 1)
    start({"loss": reads_globals}, 2)
    monkeypatch.setitem(globals(), name, value)
    with pytest.raises(pt.RunFolderError, match=rf"loss\.{name}[\w.]* was"):
        start({"loss": reads_globals}, 3)


class Temperature:
    """An object that a class holds."""

    def __init__(self, tau: float) -> None:
        self.tau = tau


class Shared(nn.Linear):
    """A layer with settings in its class."""

    table: ClassVar[Any] = {"tau": 1.0}
    mask: Any = torch.ones(3)
    options: Any = SimpleNamespace(tau=1.0)
    chosen: Any = Temperature(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.mask / self.table["tau"] / self.options.tau / self.chosen.tau


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("table", {"tau": 2.0}),
        ("mask", torch.zeros(3)),
        ("options", SimpleNamespace(tau=2.0)),
        ("chosen", Temperature(2.0)),
    ],
)
def test_a_change_of_an_attribute_of_a_class(
    name: str, value: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start({"model": lambda: Shared(4, 3)}, 1)
    monkeypatch.setattr(Shared, name, value)
    with pytest.raises(pt.RunFolderError, match=rf"model\.class\.{name}[.tau]* was"):
        start({"model": lambda: Shared(4, 3)}, 2)


def test_a_global_with_the_name_of_an_attribute_is_not_compared(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "inside", 1)  # the model has a layer of this name
    start(SCALED, 1)
    monkeypatch.setitem(globals(), "inside", 2)
    assert len(start(SCALED, 2).rows) == 2
