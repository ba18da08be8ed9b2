"""The summand of R stacked runs: an objective mapped over the leading axis of every tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pactune.objectives.base import Measured, Objective, PathContext
from pactune.trees import Params, leaves, split

__all__ = ["measure_runs", "summand_of_runs"]


def summand_of_runs(objective: Objective, train: Params, valid: Params, context: PathContext) -> Tensor:
    """Return q_t of every run. Shape (R,)."""
    return _mapped(objective.summand, train, valid, context)  # type: ignore[no-any-return]


def measure_runs(
    objective: Objective, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True
) -> Measured:
    """Return q_t of every run with its derivatives by both gradients.

    The derivative is taken of the sum over runs. This is exact, since no run depends on another.
    """
    if objective.closed:
        return _mapped(partial(objective.measure, by_valid=by_valid), train, valid, context)  # type: ignore[no-any-return]
    with torch.enable_grad():
        a, b = leaves(train), leaves(valid)
        value = summand_of_runs(objective, a, b, context)
        found = torch.autograd.grad(value.sum(), [*a.values(), *b.values()], allow_unused=True)
    return Measured(value.detach(), *split(found, a, b))


def _mapped(function: Callable[..., Any], train: Params, valid: Params, context: PathContext) -> Any:
    def one(train: Params, valid: Params, factors: Params) -> Any:
        return function(train, valid, context._replace(factors=factors))

    return torch.vmap(one)(train, valid, context.factors)
