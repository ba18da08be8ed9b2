"""Penalties of the training risk, as functions from θ to the gradient that they add to ∇R_T."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pactune.errors import SettingError
from pactune.monitor.checks import check_decay
from pactune.monitor.gradients import precise
from pactune.problem.hooks import closed_form, holders
from pactune.problem.modules import refuse_complex
from pactune.trees import Params, split

__all__ = ["PenaltyGradient", "as_decay", "as_penalty"]

PenaltyGradient = Callable[[Params], Params]


def as_penalty(penalty: object) -> list[PenaltyGradient]:
    """Return the gradients of a module's or a function's penalty."""
    if penalty is None:
        return []
    if isinstance(penalty, nn.Module):
        refuse_complex("penalty", penalty)
        found = holders(penalty, "penalty")
        if not found:
            raise SettingError(f"`penalty` must have a method `penalty(params)`, {type(penalty).__name__} has none")
        stated = [closed_form(module, "penalty_gradient") for module in found]
        pairs = zip(found, stated, strict=True)
        return [_differentiated(module.penalty) if form is None else _checked(form) for module, form in pairs]
    if not callable(penalty):
        raise SettingError(f"`penalty` must be a module or a function of the parameters, got {penalty!r}")
    return [_differentiated(penalty)]


def _checked(closed: Callable[[Params], Params]) -> PenaltyGradient:
    def gradient(params: Params) -> Params:
        found = closed(params)
        if not found.keys() & params.keys():
            raise SettingError("`penalty` knows none of the model's parameters; make it from the same model")
        wrong = [name for name, value in found.items() if name in params and value.shape != params[name].shape]
        if wrong:
            raise SettingError(
                f"`penalty` has other shapes than the model for {', '.join(wrong)}; make it from the model"
            )
        return {name: value.detach() for name, value in found.items()}

    return gradient


def _differentiated(penalty: Callable[[Params], Tensor]) -> PenaltyGradient:
    def gradient(params: Params) -> Params:
        with torch.enable_grad():
            inputs = {name: p.detach().requires_grad_() for name, p in params.items()}
            try:
                value = penalty(inputs)
            except (TypeError, ValueError, KeyError, RuntimeError) as error:
                raise SettingError(f"`penalty` fails on the model's parameters: {error}") from error
            if not isinstance(value, Tensor) or value.ndim != 0 or not value.requires_grad:
                raise SettingError(
                    f"`penalty` must return a scalar tensor that depends on the parameters, got {value!r}"
                )
            return split(torch.autograd.grad(value, list(inputs.values()), allow_unused=True), inputs)[0]

    return gradient


def as_decay(decay: object, model: nn.Module) -> list[PenaltyGradient]:
    """Return the gradient λθ of the weight decay that the optimizer applies by itself."""
    names = {id(p): name for name, p in model.named_parameters()}
    if isinstance(decay, torch.optim.Optimizer):
        optimizer = decay
        if not any(id(p) in names for group in optimizer.param_groups for p in group["params"]):
            raise SettingError("`weight_decay`: the optimizer holds none of the model's parameters")
        if not all("weight_decay" in group for group in optimizer.param_groups):
            raise SettingError(f"`weight_decay`: {type(optimizer).__name__} has no weight decay; leave it out")
        return [lambda params: _scaled(params, _decays_of(optimizer, names))]
    if isinstance(decay, Mapping):
        unknown = [name for name in decay if name not in names.values()]
        if unknown:
            raise SettingError(f"`weight_decay` names {unknown}, which the model does not have")
        for value in decay.values():
            check_decay(value)
        return [lambda params: _scaled(params, decay)]
    check_decay(decay)
    return [lambda params: _scaled(params, dict.fromkeys(params, decay))] if decay else []


def _decays_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, float]:
    return {
        names[id(p)]: float(group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) in names
    }


def _scaled(params: Params, decays: Mapping[str, Any]) -> Params:
    return {name: p * decays[name] for name, p in precise(params).items() if decays.get(name)}
