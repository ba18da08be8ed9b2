"""The requests of many runs between their rounds, each answered in one pass over stacked tensors.

Each function returns what its form for a single run returns, up to the order of summation in norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pactune.rounds.online import has_hooks
from pactune.stacking.requests import OuterStepRequest, RoundValue, ValueRequest
from pactune.trees import axpy, norm, norms, stack, unstack

__all__ = ["take_outer_steps", "value_of", "values_of"]

# These optimizers move every number by its own gradient alone, so that lists of tensors can be joined.
ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Rprop,
)


def value_of(request: ValueRequest) -> RoundValue:
    """Return the value of one round."""
    outcome = request.outcome
    gradient = outcome.gradient(request.zeta)
    length = norm(gradient)  # before the first number is read, which waits for the device
    return RoundValue(float(outcome.risk), float(outcome.regularizer), gradient, float(length))


def values_of(requests: Sequence[ValueRequest]) -> list[RoundValue]:
    """Return the values of rounds of one structure, and wait for the device once."""
    if len(requests) == 1:
        return [value_of(requests[0])]
    outcomes = [request.outcome for request in requests]
    risks, regularizers = torch.stack([o.risk for o in outcomes]), torch.stack([o.regularizer for o in outcomes])
    gradient = stack([outcome.risk_gradient for outcome in outcomes])
    if outcomes[0].path_gradient:
        zetas = torch.tensor([request.zeta for request in requests], dtype=risks.dtype, device=risks.device)
        gradient = axpy(zetas, stack([outcome.path_gradient for outcome in outcomes]), gradient)
    columns = torch.stack([risks, regularizers, norms(gradient).to(risks)]).tolist()
    parts = zip(*columns, unstack(gradient), strict=True)
    return [RoundValue(risk, regularizer, own, length) for risk, regularizer, length, own in parts]


def take_outer_steps(requests: Sequence[OuterStepRequest]) -> None:
    """Step every optimizer. Optimizers with equal settings are stepped in one call."""
    groups: list[tuple[object, list[torch.optim.Optimizer]]] = []
    for optimizer in (request.outer for request in requests):
        settings = _settings(optimizer)
        same = next((group for known, group in groups if settings is not None and known == settings), None)
        if same is None:
            groups.append((settings, [optimizer]))
        else:
            same.append(optimizer)
    for _, group in groups:
        _step(group)


def _settings(optimizer: torch.optim.Optimizer) -> object:
    """Return the settings that optimizers must share to be stepped together; None for one that steps alone."""
    if type(optimizer) not in ELEMENTWISE or has_hooks(optimizer):
        return None
    options = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    if any(isinstance(value, Tensor) for group in options for value in group.values()):
        return None
    devices = {p.device for group in optimizer.param_groups for p in group["params"]}
    return type(optimizer), options, devices


def _step(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Step optimizers of equal settings as one optimizer, on the tensors and the states of all."""
    first, *others = optimizers
    if not others:
        first.step()
        return
    groups = [
        {**group, "params": [p for one in optimizers for p in one.param_groups[index]["params"]]}
        for index, group in enumerate(first.param_groups)
    ]
    kind: Any = type(first)
    joint = kind(groups)
    for one in optimizers:
        joint.state.update(one.state)
    joint.step()
    for one in optimizers:
        for group in one.param_groups:
            one.state.update({p: joint.state[p] for p in group["params"] if p in joint.state})
