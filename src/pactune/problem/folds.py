"""Folds: which rows train and which rows validate, so that every row of a small sample can do both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.checks import check_count, shown
from pactune.errors import DataError, SettingError
from pactune.problem.data import Source
from pactune.problem.model_inputs import split_target
from pactune.streams import Streams

__all__ = ["FoldRows", "Folds", "make_folds", "targets_of"]

DEFAULT_FOLDS = 5


class FoldRows(NamedTuple):
    """The numbers of the rows of one fold: those that train, and those that validate."""

    train: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Folds:
    """The folds of a sample.

    Attributes:
        folds: the rows of every fold.
        refit: True if one more run trains on all rows, under the same λ.
    """

    folds: tuple[FoldRows, ...]
    refit: bool

    def within(self, rows: Tensor) -> Folds:
        """Return the folds of some of the rows, by the rows' places in `rows`, which must be sorted."""

        def places(chosen: Tensor) -> Tensor:
            return torch.isin(rows, chosen).nonzero().flatten()

        return Folds(_checked([FoldRows(places(fold.train), places(fold.valid)) for fold in self.folds]), self.refit)


def make_folds(source: Source, folds: Any, groups: Any, *, refit: bool, least: int = 2) -> Folds:
    """Return the folds of a sample.

    Args:
        source: the sample, whose rows are read by number.
        folds: a number, a scikit-learn splitter, or pairs of row numbers `(train, valid)`; None for 5.
        groups: the group of every row, for a splitter that keeps groups together.
        refit: True if one more run trains on all rows.
        least: the least number of folds.

    Raises:
        SettingError: `folds` is none of these.
        DataError: the rows of a fold are not rows of the sample, or a row of a fold trains and validates.
    """
    source.subset(torch.zeros(1, dtype=torch.long, device="cpu"))  # raises if rows cannot be chosen by number
    splitter = hasattr(folds, "split") and not isinstance(folds, (str, bytes))
    if groups is not None and not splitter:
        raise SettingError("`groups` needs a splitter that uses them, such as folds=GroupKFold(5) of scikit-learn")
    if splitter:
        return Folds(_split(source, folds, groups), refit)
    if isinstance(folds, Iterable) and not isinstance(folds, (str, bytes)):
        return Folds(_from_pairs(folds, source.rows), refit)
    count = DEFAULT_FOLDS if folds is None else folds
    check_count("folds", count, least, words=f"a number ≥ {least}, a scikit-learn splitter or pairs of row numbers")
    if source.rows < count:
        raise DataError(f"`data` has {source.rows} rows and cannot be split into {count} folds")
    return Folds(_stratified(source.rows, count, _labels(source)), refit)


def _stratified(rows: int, count: int, labels: Tensor | None) -> tuple[FoldRows, ...]:
    """Deal the rows out to the folds, one label after the other and each in random order. Folds differ by one row."""
    order = torch.randperm(rows, generator=Streams(0).generator("folds"), device="cpu")
    if labels is not None:
        order = order[labels[order].argsort(stable=True)]
    fold_of = torch.empty(rows, dtype=torch.long, device="cpu")
    fold_of[order] = torch.arange(rows, device="cpu") % count
    return tuple(FoldRows((fold_of != k).nonzero().flatten(), (fold_of == k).nonzero().flatten()) for k in range(count))


def _split(source: Source, splitter: Any, groups: Any) -> tuple[FoldRows, ...]:
    import numpy as np

    targets = targets_of(source)
    wanted = None if targets is None else targets.cpu().numpy()
    try:
        pairs = list(splitter.split(np.zeros((source.rows, 1)), wanted, groups))
    except (TypeError, ValueError) as error:
        raise SettingError(f"`folds={splitter}` cannot split {source.rows} rows: {error}") from error
    return _from_pairs(pairs, source.rows)


def _from_pairs(pairs: Iterable[Any], rows: int) -> tuple[FoldRows, ...]:
    found = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise SettingError(f"`folds` must hold pairs (train, valid) of row numbers, got {shown(pair)}")
        found.append(FoldRows(*(_row_numbers(part, rows) for part in pair)))
    return _checked(found)


def _row_numbers(part: Any, rows: int) -> Tensor:
    try:
        numbers = torch.as_tensor(part, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"`folds` must hold row numbers, got {shown(part)}") from error
    whole = not (numbers.is_floating_point() or numbers.dtype == torch.bool)
    if numbers.ndim != 1 or (len(numbers) and not whole):
        raise SettingError(f"`folds` must hold vectors of row numbers, got {shown(part)}")
    if len(missing := numbers[(numbers < 0) | (numbers >= rows)]):
        raise DataError(f"`folds` names row {int(missing[0])}, and `data` has {rows} rows, counted from 0")
    return numbers.long().sort().values


def _checked(folds: list[FoldRows]) -> tuple[FoldRows, ...]:
    """Return the folds; raise if there is none, one is empty, or a row trains and validates in one fold."""
    if not folds:
        raise DataError("`folds` holds no fold")
    for number, fold in enumerate(folds):
        if not len(fold.train) or not len(fold.valid):
            raise DataError(f"fold {number} has {len(fold.train)} training and {len(fold.valid)} validation rows")
        if both := int(torch.isin(fold.train, fold.valid).sum()):
            raise DataError(f"{both} rows of fold {number} train and validate; a row must do one of the two")
    return tuple(folds)


def _labels(source: Source) -> Tensor | None:
    """Return the labels of a classification, integers in one dimension; None for other targets."""
    targets = targets_of(source)
    if targets is None or targets.is_floating_point() or targets.is_complex() or targets.ndim != 1:
        return None
    return targets.cpu()


def targets_of(source: Source) -> Tensor | None:
    """Return the target of every row; None if a batch has no target that is a tensor with one entry per row."""
    parts: list[Tensor] = []
    for batch in source.evaluation():
        found = split_target(batch.data)
        target = None if found is None else found.target
        if not isinstance(target, Tensor) or target.ndim == 0 or len(target) != batch.rows:
            return None
        parts.append(target)
    return torch.cat(parts)
