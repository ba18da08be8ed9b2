"""Targets of an estimator inside `pt.tune`: class numbers or standardized numbers, with the weight of every row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pactune.checks import shown
from pactune.errors import SettingError
from pactune.problem.losses import knows_reduction, with_reduction
from pactune.search.metrics import scorer_named

__all__ = ["TargetForm", "TargetMetric", "WeightedLoss", "loss_for"]

Array = NDArray[Any]


@dataclass(frozen=True)
class TargetForm:
    """How targets are written in the tensors of `pt.tune`.

    Attributes:
        classes: True for class numbers, False for numbers.
        weighted: True if a target has two columns, the value and the weight of its row.
        mean: the mean of the numbers.
        deviation: the deviation of the numbers. The value of a target is (number − mean)/deviation.
    """

    classes: bool
    weighted: bool
    mean: float = 0.0
    deviation: float = 1.0

    def write(self, values: Array, weights: Array | None, outputs: Tensor) -> Tensor:
        """Return targets as a tensor. Numbers have the shape of the module's outputs unless weights stand beside them.

        Args:
            values: class numbers or numbers.
            weights: the weight of every row.
            outputs: some outputs of the module, for their shape, type and device.
        """
        if self.classes and weights is None:
            return torch.as_tensor(values, device=outputs.device).long()
        value = torch.as_tensor((values - self.mean) / self.deviation, device="cpu").to(outputs)
        if weights is None:
            return value.reshape(-1, *outputs.shape[1:])
        return torch.stack([value, torch.as_tensor(weights, device="cpu").to(outputs)], dim=1)

    def values(self, targets: Tensor) -> Tensor:
        """Return class numbers as integers, or numbers in units of the deviation."""
        value = targets[:, 0] if self.weighted else targets
        return value.long() if self.classes else value

    def weights(self, targets: Tensor) -> Tensor | None:
        """Return the weights of rows, None without weights."""
        return targets[:, 1] if self.weighted else None

    def in_units(self, numbers: Tensor) -> Tensor:
        """Return numbers in the user's units; class numbers and scores stay as they are."""
        return numbers if self.classes else numbers.double() * self.deviation + self.mean


def loss_for(loss: Any, form: TargetForm) -> Callable[..., Tensor]:
    """Return a loss of the user for targets of a form.

    Raises:
        SettingError: the loss cannot be called, or not row by row where rows have weights.
    """
    if not callable(loss):
        raise SettingError(f"`loss` must be a function of predictions and targets, got {shown(loss)}")
    if not form.weighted:
        return loss  # type: ignore[no-any-return]
    by_rows = with_reduction(loss)
    if not knows_reduction(by_rows):
        raise SettingError(
            "`loss` must have an argument `reduction`, as F.cross_entropy has, if fit gets `sample_weight`, "
            f"got {shown(loss)}"
        )
    return WeightedLoss(by_rows, form)


class WeightedLoss:
    """A loss whose targets hold the weights of their rows: the mean is Σ w·loss / Σ w.

    Args:
        loss: `loss(prediction, target, reduction=)`.
        form: the form of the targets.
    """

    def __init__(self, loss: Callable[..., Tensor], form: TargetForm) -> None:
        self._loss, self._form = loss, form

    def __call__(self, prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """Return the weighted mean over the rows, or the weighted loss of every row with `reduction="none"`."""
        value, weights = self._form.values(target), target[:, 1]
        if not self._form.classes:
            value = value.reshape(prediction.shape)
        rows = self._loss(prediction, value, reduction="none").reshape(len(weights), -1).mean(1) * weights
        return rows if reduction == "none" else rows.sum() / weights.sum()


class TargetMetric:
    """A metric of the user on predictions and targets in the user's units. Larger is better unless it says otherwise.

    Args:
        metric: a function `metric(predictions, targets)`, the name of a scorer, or None for the accuracy or R².
        form: the form of the targets. With weights, the metric is called with `sample_weight=`.

    Raises:
        SettingError: the metric is none of these, or it takes no weights.
    """

    def __init__(self, metric: Any, form: TargetForm) -> None:
        if metric is None:
            metric = _accuracy if form.classes else _r2
        self._form, self._score = form, _scorer(metric, form) if isinstance(metric, str) else metric
        if not callable(self._score):
            raise SettingError(
                "`metric` must be a function of predictions and targets, the name of a scikit-learn scorer or None, "
                f"got {shown(metric)}"
            )
        if form.weighted and not _takes_weights(self._score):
            raise SettingError(f"`metric` must take `sample_weight` if fit gets it, got {shown(metric)}")
        named = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
        self.__name__ = named.strip("_")
        self.higher_is_better = getattr(metric, "higher_is_better", None) is not False

    def __call__(self, predictions: Tensor, targets: Tensor) -> Any:
        """Return the metric."""
        form, weights = self._form, self._form.weights(targets)
        wanted = form.in_units(form.values(targets).reshape(-1))
        found = form.in_units(predictions if form.classes else predictions.reshape(-1))
        return self._score(found, wanted) if weights is None else self._score(found, wanted, sample_weight=weights)


def _accuracy(predictions: Tensor, targets: Tensor, sample_weight: Tensor | None = None) -> float:
    right = (predictions.argmax(1) == targets).double()
    return float(right.mean() if sample_weight is None else (right * sample_weight).sum() / sample_weight.sum())


def _r2(predictions: Tensor, targets: Tensor, sample_weight: Tensor | None = None) -> float:
    weights = torch.ones_like(targets) if sample_weight is None else sample_weight.to(targets)
    mean = (weights * targets).sum() / weights.sum()
    return float(1 - (weights * (predictions - targets) ** 2).sum() / (weights * (targets - mean) ** 2).sum())


def _scorer(name: str, form: TargetForm) -> Callable[..., float]:
    """Return a scorer of scikit-learn as a function of predictions and targets.

    Raises:
        SettingError: scikit-learn has no scorer of this name, or it is one for the other task.
    """
    from pactune.search.predicted import PredictedClasses, PredictedNumbers, scores_numbers

    scorer = scorer_named(name)
    if scores_numbers(scorer) == form.classes:
        raise _other_task(name, form)

    def score(predictions: Tensor, targets: Tensor, sample_weight: Tensor | None = None) -> float:
        known = (PredictedClasses if form.classes else PredictedNumbers)(predictions.cpu())
        weights = {} if sample_weight is None else {"sample_weight": sample_weight.double().cpu().numpy()}
        return float(scorer(known, np.arange(len(targets)).reshape(-1, 1), targets.cpu().numpy(), **weights))

    return score


def _other_task(name: str, form: TargetForm) -> SettingError:
    task, wanted, known = ("classification", "classes", "accuracy") if form.classes else ("regression", "numbers", "r2")
    return SettingError(
        f"`metric` must score {wanted}, because the task is {task}, got {name!r}; use for instance {known!r}, or "
        "change the task"
    )


def _takes_weights(metric: Callable[..., Any]) -> bool:
    try:
        known = inspect.signature(metric).parameters
    except (TypeError, ValueError):  # some callables, of C for instance, have no signature
        return False
    return "sample_weight" in known or any(one.kind is one.VAR_KEYWORD for one in known.values())
