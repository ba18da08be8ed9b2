"""The loss of predicted classes at several temperatures: how well a model ranks the classes, however sure it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

__all__ = ["FACTORS", "losses_of_classes", "losses_of_one_logit"]

FACTORS = tuple(10 ** (exponent / 8) for exponent in range(-12, 9))  # of the logits; 1 / temperature
LARGEST = 1e3  # the loss of a row whose logits are not finite


def losses_of_classes(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every row with the logits multiplied by each factor. Shape (rows, factors).

    Long training makes a model too sure of itself: its loss rises while it still learns to tell classes apart. A choice
    by the least mean over the factors does not see that, and it is less noisy than a count of wrong rows.

    >>> logits, targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1])
    >>> [round(float(losses_of_classes(size * logits, targets).mean(0).min()), 2) for size in (1, 8)]
    [0.64, 0.64]
    """
    return _finite([F.cross_entropy(factor * logits.double(), targets, reduction="none") for factor in FACTORS])


def losses_of_one_logit(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the same for models with one logit and targets 0 and 1."""
    flat, wanted = logits.double().reshape(len(logits)), targets.double().reshape(len(targets))
    return _finite([F.binary_cross_entropy_with_logits(factor * flat, wanted, reduction="none") for factor in FACTORS])


def _finite(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses, dim=1).nan_to_num(nan=LARGEST, posinf=LARGEST).clamp(max=LARGEST)
