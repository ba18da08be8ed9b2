"""Check the scores, labels and row losses of a certificate. Each error names the broken condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pactune.checks import POSITIVE, is_number, shown
from pactune.errors import CertificateError
from pactune.nested import map_tensors
from pactune.problem.data import Batch
from pactune.problem.data.take_rows import first_rows

__all__ = ["check_rows", "check_scores", "check_single_rows", "class_scores", "labels"]

FEW = 2  # rows that are predicted alone, to find out if other rows change their scores


def check_scores(scores: Any, rows: int) -> None:
    """Raise unless every row has scores and all of them are finite."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        found = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise CertificateError([f"finite scores: the model must return floating-point scores, got {found}"])
    if scores.ndim == 0 or len(scores) != rows:
        raise CertificateError([f"scores of every row: {rows} rows have scores of shape {tuple(scores.shape)}"])
    broken = int((~scores.isfinite()).reshape(rows, -1).any(1).sum())
    if broken:
        raise CertificateError([f"finite scores: the scores of {broken} of {rows} rows are NaN or infinite"])


def class_scores(scores: Tensor, *, single: bool) -> Tensor:
    """Return scores as (rows, classes), or as (rows, 1) if the model has a single score per row."""
    columns = scores.shape[1] if scores.ndim == 2 else 1 if scores.ndim == 1 else 0
    if single and columns == 1:
        return scores.reshape(-1, 1)
    if not single and columns >= 2:
        return scores
    shape = tuple(scores.shape)
    if single:
        raise CertificateError([f"known prediction: `threshold` is for one score per row, got shape {shape}"])
    raise CertificateError(
        [
            f"known prediction: scores of shape {shape} do not have one column per class; for one score per row say "
            "ZeroOne(threshold=0.0) for logits, ZeroOne(threshold=0.5) for probabilities"
        ]
    )


def labels(target: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the labels as class numbers; raise unless they fit scores of shape (rows, classes)."""
    rows, classes = shape
    if not isinstance(target, Tensor) or tuple(target.shape) not in {(rows,), (rows, 1)} or target.is_complex():
        found = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise CertificateError([f"one label per row: {rows} rows need one class number each, got {found}"])
    flat = target.reshape(-1).double()
    wrong = ~((flat >= 0) & (flat < classes) & (flat == flat.trunc()))
    if bool(wrong.any()):
        raise CertificateError(
            [f"labels that fit: class numbers must be 0, …, {classes - 1}, got {flat[wrong][0].item()!r}"]
        )
    return flat.long()


def check_rows(losses: Any, rows: int, largest: Any) -> Tensor:
    """Return the losses divided by `largest`, float64 on the CPU; raise if one exceeds it by more than rounding."""
    if not is_number(largest) or not POSITIVE.holds(largest):
        raise CertificateError([f"bounded loss: `largest` must be {POSITIVE.words}, got {shown(largest)}"])
    if not isinstance(losses, Tensor) or losses.is_complex() or tuple(losses.shape) != (rows,):
        found = f"{losses.dtype} of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else shown(losses)
        raise CertificateError([f"bounded loss: {rows} rows need a tensor of one real loss each, got {found}"])
    slack = largest * torch.finfo(losses.dtype).eps if losses.is_floating_point() else 0.0
    values = losses.detach().double().cpu()
    wrong = ~((values >= -slack) & (values <= largest + slack))
    if bool(wrong.any()):
        raise CertificateError(
            [
                f"bounded loss: {int(wrong.sum())} of {rows} rows have a loss that is not between 0 and "
                f"`largest`={largest:g}, for example {values[wrong][0].item()!r}"
            ]
        )
    return values.clamp(0.0, float(largest)) / largest


def check_single_rows(predict: Callable[[Batch], Any], batch: Batch, scores: Any) -> None:
    """Raise if the scores of a row depend on the other rows of the batch: then the losses are not independent.

    A difference is compared with the spread of its own column, so that a constant or huge column hides nothing. The
    tolerance is wide, because other batch sizes round differently. Batch statistics of two rows differ by far more.
    """
    check_scores(scores, batch.rows)
    if batch.rows <= FEW:
        return
    alone = predict(batch._replace(data=map_tensors(batch.data, lambda part: first_rows(part, FEW)), rows=FEW))
    check_scores(alone, FEW)
    together = scores.double()
    allowed = 0.02 * together.std(0) + max(2e-3, torch.finfo(scores.dtype).eps ** 0.5) * together.abs().amax(0)
    if alone.shape[1:] != scores.shape[1:] or bool(((alone.double() - together[:FEW]).abs() > allowed).any()):
        raise CertificateError(
            [
                "prediction of single rows: the scores of a row change with the other rows of its batch, or at random "
                "(batch statistics, dropout)"
            ]
        )
