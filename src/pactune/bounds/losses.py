"""The losses that a certificate can bound: between 0 and a largest value, one number per row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from pactune.bounds.scores import check_rows, check_scores, check_single_rows, class_scores, labels
from pactune.checks import FINITE, POSITIVE, check_number
from pactune.problem import Problem
from pactune.problem.data import Batch, Source
from pactune.problem.model_inputs import inputs_and_target
from pactune.problem.modules import mode
from pactune.trees import Params

__all__ = ["BoundedLoss", "ClippedCrossEntropy", "ZeroOne", "mean_losses", "row_losses"]


class BoundedLoss(ABC):
    """A loss between 0 and `largest`. A row with a loss outside of that range raises an error."""

    largest: float

    @abstractmethod
    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss of every row. Shape (rows,)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the loss in the certificate."""


@dataclass(frozen=True)
class ZeroOne(BoundedLoss):
    """1 if the predicted class is wrong, else 0: the certificate is about the error rate.

    Args:
        threshold: None for models with one score per class; they predict the class of the highest score. For models
            with one score per row, the value above which they predict class 1: 0.0 for a logit, 0.5 for a probability.
    """

    threshold: float | None = None

    largest = 1.0

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_number("threshold", self.threshold, FINITE)

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return 0 or 1 for every row.

        Raises:
            CertificateError: the scores or the labels have the wrong shape or values.
        """
        wanted = class_scores(scores, single=self.threshold is not None)
        if self.threshold is None:
            return (wanted.argmax(1) != labels(target, wanted.shape)).to(scores.dtype)
        return ((wanted[:, 0] > self.threshold).long() != labels(target, (len(wanted), 2))).to(scores.dtype)

    @property
    def name(self) -> str:
        """Return its name."""
        return "error rate" if self.threshold is None else f"error rate (class 1 above {self.threshold:g})"


@dataclass(frozen=True)
class ClippedCrossEntropy(BoundedLoss):
    """min(ℓ, L) with the cross-entropy ℓ, which is unbounded and has no certificate itself.

    Args:
        largest: L, chosen before looking at the data.
    """

    largest: float = 4.0

    def __post_init__(self) -> None:
        check_number("largest", self.largest, POSITIVE)

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return min(ℓ, L) for every row.

        Raises:
            CertificateError: the scores or the labels have the wrong shape or values.
        """
        wanted = class_scores(scores, single=False)
        found = functional.cross_entropy(wanted, labels(target, wanted.shape), reduction="none")
        return found.clamp_max(self.largest)

    @property
    def name(self) -> str:
        """Return its name."""
        return f"cross-entropy, at most {self.largest:g} per row"


def row_losses(loss: BoundedLoss, scores: Any, target: Any, rows: int) -> Tensor:
    """Return the loss of every row divided by the largest one; float64 on the CPU. Shape (rows,).

    Raises:
        CertificateError: a score is not finite, a label is no class number, or a loss is not between 0 and `largest`.
    """
    check_scores(scores, rows)
    return check_rows(loss.rows(scores, target), rows, loss.largest)


def mean_losses(problem: Problem, params: Params, source: Source, loss: BoundedLoss) -> Tensor:
    """Return the mean loss of M models in `eval()` mode on a sample, divided by the largest loss; float64. Shape (M,).

    Args:
        problem: its model computes the forward.
        params: the parameters of M models. Shapes (M, ...).
        source: the sample.
        loss: the loss to average.

    Raises:
        CertificateError: a score or a loss is not allowed in a certificate.
    """
    models = len(next(iter(params.values())))
    total, rows = torch.zeros(models, dtype=torch.float64, device="cpu"), 0

    def scores(batch: Batch) -> Tensor:
        found: Tensor = vmap(lambda values: problem.predict(values, batch)[0])(params)
        return found

    with mode(problem.model, training=False), torch.no_grad():
        for batch in source.evaluation():
            found, target = scores(batch), inputs_and_target(batch.data).target
            if not rows:
                check_single_rows(lambda few: scores(few).transpose(0, 1), batch, found.transpose(0, 1))
            total += torch.stack([row_losses(loss, one, target, batch.rows).sum() for one in found])
            rows += batch.rows
    return (total / rows).clamp(0.0, 1.0)
