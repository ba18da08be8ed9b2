"""The mean of a risk and of metrics over a data set, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pactune.errors import SettingError
from pactune.interrupts import check_interrupt
from pactune.problem.data import Batch
from pactune.problem.model_inputs import split_target

__all__ = ["Evaluation", "average", "outputs_of"]


class Evaluation(NamedTuple):
    """The risk of a data set in `eval()` mode, and the problem's metrics, such as the accuracy."""

    risk: float
    metrics: dict[str, float]

    def columns(self, prefix: str) -> dict[str, float]:
        """Return the values as columns of a history, such as `valid_risk`."""
        return {f"{prefix}_risk": self.risk, **{f"{prefix}_{name}": value for name, value in self.metrics.items()}}


def average(
    batches: Iterable[Batch],
    risk_of: Callable[[Batch], Tensor],
    metrics_of: Callable[[Batch], Mapping[str, Tensor | float]],
) -> Evaluation:
    """Return the means over all rows.

    Raises:
        SettingError: the names of the metrics differ between batches.
    """
    rows, risk, sums = 0, 0.0, dict[str, float]()
    for batch in batches:
        check_interrupt()
        risk += batch.rows * float(risk_of(batch))
        found = metrics_of(batch)
        if rows and found.keys() != sums.keys():
            raise SettingError(
                f"`metrics` must return the same names for every batch, got {sorted(found)} after {sorted(sums)}"
            )
        rows += batch.rows
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + batch.rows * float(value)
    return Evaluation(risk / rows, {name: value / rows for name, value in sums.items()})


def outputs_of(model: nn.Module, batches: Iterable[Batch]) -> Tensor | None:
    """Return the model's output for every row; None if a batch names no target, or rows have no output each."""
    found = list[Tensor]()
    for batch in batches:
        parts = split_target(batch.data)
        outputs = None if parts is None else parts.apply(model)
        if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != batch.rows:
            return None
        found.append(outputs.detach())
    return torch.cat(found)
