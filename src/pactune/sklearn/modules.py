"""The module that an estimator trains: linear by default, a copy of the user's module, or made by a factory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pactune.checks import shown
from pactune.errors import SettingError
from pactune.problem.modules import as_module
from pactune.search.training import copied_modules

__all__ = ["first_parameter", "make_module", "try_module"]


def make_module(given: Any, inputs: int, outputs: int, seed: int) -> nn.Module:
    """Return the module to train.

    Args:
        given: None for a linear model that starts at zero, a module, which is copied, or `factory(inputs, outputs)`.
        inputs: the number of features.
        outputs: the number of classes; 1 for regression.
        seed: the seed of the factory's random numbers.

    Raises:
        SettingError: `given` is none of these, fails, or has no parameters.
    """
    if given is None:
        linear = nn.Linear(inputs, outputs, device="cpu", dtype=torch.float64)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return linear
    if isinstance(given, nn.Module):
        module = copied_modules(as_module("module", given))[0]
    elif callable(given):
        module = as_module("module", _made(given, inputs, outputs, seed))
    else:
        raise SettingError(f"`module` must be an nn.Module, a factory(inputs, outputs) or None, got {shown(given)}")
    first_parameter(module)
    return module


def _made(factory: Any, inputs: int, outputs: int, seed: int) -> Any:
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        try:
            return factory(inputs, outputs)
        except Exception as error:  # the user's code may raise anything
            raise SettingError(
                f"`module` fails with {type(error).__name__}: {error}; a factory is called as "
                f"module({inputs}, {outputs}), with the number of features and of outputs, and returns an nn.Module"
            ) from error


def first_parameter(module: nn.Module) -> Tensor:
    """Return a parameter, whose type and device are those of the inputs.

    Raises:
        SettingError: the module has no parameter.
    """
    found = next((p for p in module.parameters() if p.is_floating_point()), None)
    if found is None:
        raise SettingError(f"`module` must have parameters to train, got {type(module).__name__} without any")
    return found


def try_module(module: nn.Module, inputs: Tensor, classes: int | None) -> Tensor:
    """Return a module's outputs: a score per class, or one number per row if `classes` is None.

    Raises:
        SettingError: the module fails, or returns something else.
    """
    before = module.training
    try:
        with torch.no_grad():
            found = module.eval()(inputs)
    except Exception as error:  # the user's module may raise anything
        raise SettingError(
            f"`module` fails with {type(error).__name__} on inputs of shape {tuple(inputs.shape)}: "
            f"{' '.join(str(error).split())}"
        ) from error
    finally:
        module.train(before)
    rows = len(inputs)
    wanted = [(rows, 1), (rows,)] if classes is None else [(rows, classes)]
    if not isinstance(found, Tensor) or tuple(found.shape) not in wanted:
        each = "one number per row" if classes is None else f"a score for each of the {classes} classes"
        raise SettingError(f"`module` must return {each}, shape {wanted[0]} for {rows} rows, got {shown(found)}")
    return found
