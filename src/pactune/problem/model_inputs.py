"""The inputs and the target of a batch, for losses of the form `loss(model(inputs), target)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pactune.errors import DataError
from pactune.nested import items_of

__all__ = ["TARGETS", "ModelInputs", "inputs_and_target", "split_target"]

TARGETS = {"y", "label", "labels", "target", "targets"}  # the names of a target in a mapping


class ModelInputs(NamedTuple):
    """The inputs and the target of a batch.

    Attributes:
        arguments: the inputs that are passed to the model by position.
        named: the inputs that are passed by name.
        target: the target.
    """

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    target: Any

    def apply(self, model: Any) -> Any:
        """Return the model's output."""
        return model(*self.arguments, **self.named)


def split_target(data: Any) -> ModelInputs | None:
    """Return the inputs and the target of a batch; None if the batch does not say which part is the target.

    The target is the last part of a tuple, list or NamedTuple. In a mapping or a dataclass it is the one entry that is
    named like a target; a single other entry is passed to the model by position, several are passed by name. Without
    such a name the target of a dataclass is its last field.

    >>> split_target({"input_ids": 1, "attention_mask": 2, "labels": 3})
    ModelInputs(arguments=(), named={'input_ids': 1, 'attention_mask': 2}, target=3)
    """
    if type(data) in (tuple, list) and len(data) > 1:  # the usual batch; its parts have no names
        return ModelInputs(tuple(data[:-1]), {}, data[-1])
    parts = items_of(data) or []
    targets = [part for name, part in parts if str(name).lower() in TARGETS]
    named = {str(name): part for name, part in parts if name is not None and str(name).lower() not in TARGETS}
    if len(targets) == 1 and len(named) == 1:
        return ModelInputs(tuple(named.values()), {}, targets[0])
    if len(targets) == 1 and named:
        return ModelInputs((), named, targets[0])
    if isinstance(data, Mapping) or len(parts) < 2:
        return None
    *inputs, target = [part for _, part in parts]
    return ModelInputs(tuple(inputs), {}, target)


def inputs_and_target(data: Any) -> ModelInputs:
    """Return the inputs and the target of a batch.

    Raises:
        DataError: the batch does not say which part is the target.
    """
    found = split_target(data)
    if found is None:
        raise DataError(
            "with `loss=` every batch must be a tuple (inputs, target), or a mapping whose target is named one of "
            f"{', '.join(sorted(TARGETS))}, got {type(data).__name__}; otherwise pass `train_loss` and `valid_loss`"
        )
    return found
