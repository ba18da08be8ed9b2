"""Which rows train, choose and judge: while a fold is held out, the other folds validate in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.errors import DataError, SettingError
from pactune.problem import Problem
from pactune.problem.folds import FoldRows, targets_of
from pactune.problem.losses import losses_of_rows

__all__ = ["HeldOutFold", "counted_rows", "hold_out_folds", "holding", "merged", "union"]


class HeldOutFold(NamedTuple):
    """The rows that are used while one fold is held out.

    Attributes:
        parts: the rows that train and the rows that choose, for every model.
        held: the rows of the fold, which only judge.
    """

    parts: list[FoldRows]
    held: Tensor


def counted_rows(problem: Problem, loss: Callable[..., Tensor]) -> Tensor:
    """Return the numbers of the rows that the loss counts. The others have whole targets and no loss at any output.

    Raises:
        DataError: the loss counts no row.
    """
    outputs, targets = problem.predictions(problem.valid), targets_of(problem.valid)
    if outputs is None or targets is None or targets.is_floating_point():
        return torch.arange(problem.valid.rows, device="cpu")
    found = (~_is_ignored(loss, outputs, targets)).nonzero().flatten().cpu()
    if not len(found):
        raise DataError("`loss` ignores every row of the data that choose and judge; give some of them a label")
    return found


def _is_ignored(loss: Callable[..., Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """Return True for the rows whose loss is 0 at the model's outputs and at outputs that fit no whole target."""
    try:
        with torch.no_grad():
            here, there = (losses_of_rows(loss, one, targets) for one in (outputs, torch.full_like(outputs, 0.5)))
    except Exception:  # a loss may refuse outputs that it was not tried on
        return torch.zeros(len(targets), dtype=torch.bool, device="cpu")
    return (here == 0) & (there == 0)


def holding(folds: Iterable[FoldRows], rows: Tensor) -> list[FoldRows]:
    """Return the folds that hold out one of some rows at least."""
    return [fold for fold in folds if bool(torch.isin(fold.valid, rows).any())]


def hold_out_folds(folds: Sequence[FoldRows], reach: int, rows: Tensor | None = None) -> list[HeldOutFold]:
    """Hold every fold out in turn. Its partners, up to `reach` folds before and after it, then validate one by one.

    A model that trains without fold k and fold j serves twice: fold j chooses while k judges, and the other way round.

    Args:
        folds: the folds.
        reach: the number of partners before and after a fold.
        rows: the rows that may choose and judge; None for all.

    Raises:
        SettingError: no rows are left to train or to choose while a fold is held out.
    """
    if rows is not None:
        folds = [FoldRows(fold.train, fold.valid[torch.isin(fold.valid, rows)]) for fold in folds]
    count, found = len(folds), []
    for k, fold in enumerate(folds):
        partners = sorted({(k + step) % count for step in range(-reach, reach + 1)} - {k})
        parts = [_part(fold, folds[j]) for j in partners]
        whole = merged(part for part in parts if len(part.train) and len(part.valid))
        if not whole:
            raise SettingError(
                f"no rows are left to train or to choose by while fold {k} is held out; use three folds or more"
            )
        found.append(HeldOutFold(whole, fold.valid))
    return found


def merged(parts: Iterable[FoldRows]) -> list[FoldRows]:
    """Return the parts with parts of equal training rows as one, whose validation rows are those of all of them."""
    found: dict[tuple[int, ...], FoldRows] = {}
    for part in parts:
        key = tuple(part.train.tolist())
        valid = union(found[key].valid, part.valid) if key in found else part.valid
        found[key] = FoldRows(part.train, valid)
    return list(found.values())


def union(one: Tensor, other: Tensor) -> Tensor:
    """Return the row numbers of two sets in order, each once."""
    found: Tensor = torch.cat([one, other]).unique()  # type: ignore[no-untyped-call]
    return found


def _part(held: FoldRows, partner: FoldRows) -> FoldRows:
    """Return the rows that train in both folds, and the partner's rows that are not held out."""
    train = held.train[torch.isin(held.train, partner.train)]
    return FoldRows(train, partner.valid[~torch.isin(partner.valid, held.valid)])
