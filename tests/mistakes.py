"""A small tuner to make mistakes with, and the check that a mistake gets a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


class Case(NamedTuple):
    """A row of a table of mistakes: the call, the class of its error, and a pattern of the message."""

    call: Callable[[], Any]
    error: type[Exception]
    message: str


def check_refused(case: Case) -> None:
    """Assert that a call ends with the error of the row, and that the message is short."""
    with pytest.raises(case.error, match=case.message) as caught:
        case.call()
    assert isinstance(caught.value, pt.PactuneError)
    assert isinstance(caught.value, ValueError | RuntimeError | ArithmeticError)
    assert len(str(caught.value)) < 800


def problem(model: Any = None, hyper: Any = None, **changes: Any) -> pt.Problem:
    """Return a small classification problem. `...` leaves an argument out."""
    model = nn.Linear(4, 3) if model is None else model
    hyper = pt.WeightDecay(model) if hyper is None else hyper
    settings = {"train": (X, Y), "valid": (X, Y), "loss": F.cross_entropy} | changes
    return pt.Problem(model, hyper, **{k: v for k, v in settings.items() if v is not ...})


def tuner(given: pt.Problem | None = None, **changes: Any) -> pt.Tuner:
    """Return a tuner of the small problem; every setting can be replaced."""
    given = problem() if given is None else given
    defaults = {
        "inner": pt.SGD(0.1),
        "inner_steps": 5,
        "outer": torch.optim.SGD(given.hyper.parameters(), lr=0.1),
        "objective": pt.PACBayes(0.1),
    }
    return pt.Tuner(given, **(defaults | changes))


def fit(test: Any = None, given: pt.Problem | None = None, run_dir: Any = None, **changes: Any) -> pt.Result:
    """Run one outer step of the small tuner."""
    return tuner(given, **changes).fit(1, test=test, run_dir=run_dir)
