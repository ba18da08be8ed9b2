"""Which rows train, choose and judge: while a fold is held out, the other folds validate in turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.errors import SettingError
from pactune.problem.folds import FoldRows

__all__ = ["HeldOutFold", "hold_out_folds", "merged", "union"]


class HeldOutFold(NamedTuple):
    """The rows that are used while one fold is held out.

    Attributes:
        parts: the rows that train and the rows that choose, for every model.
        held: the rows of the fold, which only judge.
    """

    parts: list[FoldRows]
    held: Tensor


def hold_out_folds(folds: Sequence[FoldRows], reach: int) -> list[HeldOutFold]:
    """Hold every fold out in turn. Its partners, up to `reach` folds before and after it, then validate one by one.

    A model that trains without fold k and fold j serves twice: fold j chooses while k judges, and the other way round.

    Raises:
        SettingError: no rows are left to train or to choose while a fold is held out.
    """
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
