"""What the short form of a problem knows about losses: their batches and reductions, and the accuracy beside them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from pactune.errors import DataError, SettingError

__all__ = ["accuracy", "check_losses", "inputs_and_target", "knows_reduction"]


def knows_reduction(loss: object) -> bool:
    """Whether a loss can be asked for the losses of single rows."""
    return callable(loss) and "reduction" in inspect.signature(loss).parameters


def inputs_and_target(data: Any) -> tuple[Any, ...]:
    """Return a batch of the short form as (inputs…, target)."""
    if isinstance(data, (tuple, list)) and len(data) >= 2:
        return tuple(data)
    raise DataError(
        "with `loss=` every batch must be a tuple (inputs, target); otherwise pass `train_loss` and `valid_loss`"
    )


def accuracy(model: nn.Module, data: Any) -> dict[str, Tensor]:
    """Return the share of right answers where the target is a class number, else nothing."""
    *inputs, target = inputs_and_target(data)
    if not isinstance(target, Tensor) or target.is_floating_point() or target.ndim != 1:
        return {}
    scores = model(*inputs)
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        return {}
    return {"accuracy": (scores.argmax(1) == target).double().mean()}


def check_losses(loss: object, train_loss: object, valid_loss: object) -> None:
    """Raise unless there is one loss, or two of the general form."""
    short, general = loss is not None, (train_loss is not None, valid_loss is not None)
    if short and not any(general):
        wanted = {"loss": loss}
    elif not short and all(general):
        wanted = {"train_loss": train_loss, "valid_loss": valid_loss}
    else:
        raise SettingError("pass either `loss`, or both `train_loss` and `valid_loss`")
    for name, value in wanted.items():
        if not callable(value):
            raise SettingError(f"`{name}` must be callable, got {type(value).__name__}")
