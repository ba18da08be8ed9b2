"""Losses that a certificate may be about: bounded, one number per row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from pactune.checks import POSITIVE, check_number
from pactune.data import Source
from pactune.problem import Problem
from pactune.trees import Params

__all__ = ["BoundedLoss", "ClippedCrossEntropy", "ZeroOne", "mean_losses"]


class BoundedLoss(ABC):
    """A loss between 0 and `largest`."""

    largest: float

    @abstractmethod
    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss of every row. Shape (rows,)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the certificate calls it."""


@dataclass(frozen=True)
class ZeroOne(BoundedLoss):
    """1 where the class of the highest score is wrong: the certificate is about the error rate."""

    largest = 1.0

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return 0 or 1 for every row."""
        return (scores.argmax(-1) != target).to(scores.dtype)

    @property
    def name(self) -> str:
        """Return its name."""
        return "error rate"


@dataclass(frozen=True)
class ClippedCrossEntropy(BoundedLoss):
    """min(ℓ, L) with the cross-entropy ℓ; an unbounded loss has no certificate of this kind.

    Args:
        largest: L, chosen before looking at the data.
    """

    largest: float = 4.0

    def __post_init__(self) -> None:
        check_number("largest", self.largest, POSITIVE)

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return min(ℓ, L) for every row."""
        return functional.cross_entropy(scores, target, reduction="none").clamp_max(self.largest)

    @property
    def name(self) -> str:
        """Return its name."""
        return f"cross-entropy, at most {self.largest:g} per row"


def mean_losses(problem: Problem, params: Params, source: Source, loss: BoundedLoss) -> Tensor:
    """Return the mean loss of M models on a sample, divided by the largest loss; float64. Shape (M,).

    Args:
        problem: gives the forward.
        params: of M models. Shapes (M, ...).
        source: the sample.
        loss: what is averaged.
    """
    total, rows = torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad():
        for batch in source.evaluation():

            def one(values: Params, batch: object = batch) -> Tensor:
                scores, target = problem.predict(values, batch)  # type: ignore[arg-type]
                return loss.rows(scores, target).sum(dtype=torch.float64)

            total = total + vmap(one)(params).cpu()
            rows += batch.rows
    return (total / (rows * loss.largest)).clamp(0.0, 1.0)
