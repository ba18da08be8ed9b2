"""The checks of a monitor's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn

from pactune.checks import (
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    Rule,
    check_choice,
    check_count,
    check_number,
    check_seed,
    is_number,
)
from pactune.errors import DivergenceError, SettingError
from pactune.objectives import PACBayes
from pactune.problem.modules import refuse_complex, refuse_torchscript

__all__ = [
    "as_risk",
    "as_zeta",
    "check_decay",
    "check_modules",
    "check_numbers",
    "check_state",
    "positive",
]


def check_decay(value: object) -> None:
    """Raise unless a weight decay is a finite number."""
    words = "a finite number, a dict of them by parameter name, or an optimizer"
    check_number("weight_decay", value, Rule(words, FINITE.holds))


def check_modules(model: object, loss: object, batch_loss: object) -> None:
    """Raise unless there is a model, and either `loss` or `batch_loss`."""
    if not isinstance(model, nn.Module):
        raise SettingError(f"`model` must be an nn.Module, got {type(model).__name__}")
    if type(model).__name__ in ("FullyShardedDataParallel", "FSDP"):
        raise SettingError("`model` must not be sharded: no process of FSDP has a whole gradient; use DDP")
    refuse_torchscript("model", model)
    refuse_complex("model", model)
    if (loss is None) == (batch_loss is None):
        raise SettingError("pass either `loss(prediction, target)` or `batch_loss(model, batch)`")
    for name, value in (("loss", loss), ("batch_loss", batch_loss)):
        if value is not None and not callable(value):
            raise SettingError(f"`{name}` must be callable, got {type(value).__name__}")


def check_numbers(every: object, seed: object, on_nonfinite: object) -> None:
    """Raise unless `every`, `seed` and `on_nonfinite` keep their rules."""
    check_count("every", every)
    check_seed("seed", seed)
    check_choice("on_nonfinite", on_nonfinite, ("raise", "skip"))


def as_risk(value: object) -> float:
    """Return a validation risk as a number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not is_number(value):
        raise SettingError(f"`valid_risk` must be a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise DivergenceError(f"`valid_risk` is {value}: training diverged; lower the learning rate")
    return float(value)


def as_zeta(zeta: object, lr: object, beta: object) -> float:
    """Return ζ as a number; "theory" is √(β·lr/4)."""
    if not isinstance(zeta, str) or zeta != "theory":
        check_number("zeta", zeta, Rule('a finite number ≥ 0 or "theory"', NOT_NEGATIVE.holds))
        return float(cast(float, zeta))
    return PACBayes("theory").theory_zeta(positive("lr", lr), positive("beta", beta))


def positive(name: str, value: object) -> float:
    """Return a positive, finite number."""
    check_number(name, value, Rule("a positive number here", POSITIVE.holds))
    return float(cast(float, value))


def check_state(state: object, settings: Mapping[str, int]) -> None:
    """Raise unless `state` is that of a monitor with the same settings."""
    wanted = {"total", "steps", "measured", *settings}
    if not isinstance(state, Mapping) or set(state) != wanted:
        raise SettingError(f"`state` must be the state_dict of a monitor, with {sorted(wanted)}")
    if not is_number(state["total"]) or state["total"] < 0:
        raise SettingError(f"`state`: total must be a number ≥ 0, got {state['total']!r}")
    counts = [state["measured"], state["steps"]]
    if any(isinstance(n, bool) or not isinstance(n, int) for n in counts) or not 0 <= counts[0] <= counts[1]:
        raise SettingError(f"`state`: measured and steps must be 0 ≤ measured ≤ steps, got {counts}")
    for name, value in settings.items():
        if state[name] != value:
            raise SettingError(f"`state` is of a monitor with {name}={state[name]!r}; this one has {name}={value}")
