"""Find the rows that two samples share, whatever the tensors' types and up to rounding.

Rows are compared by their inputs: a training row with another label is still that training row. Each column is divided
by its spread, and the row is projected onto a few fixed directions. Two rows are the same if their distance is small
relative to their length. The tolerance adapts to the data: it is 1/32 of a small distance (the 1 % quantile) between
different rows of one sample. So images are recognised after rounding to bfloat16, and neighbours on a line stay
different rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pactune.errors import DataError
from pactune.extras import require
from pactune.nested import tensors_in
from pactune.problem.data import Batch
from pactune.problem.model_inputs import TARGETS, split_target

__all__ = ["ProjectedRows", "RowFingerprints"]

Array = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]
DIRECTIONS = 8  # coordinates of a projected row; a row with fewer columns keeps its columns
SCALE_ROWS = 1024  # rows from which the spread of the columns is computed
BLOCK = 512  # rows that are projected at once
NEIGHBOUR_ROWS = 1000  # rows whose distance to their neighbours is computed
ROUNDING = 2.0**-20  # relative distance that float32 arithmetic explains: such rows are always the same
COARSEST = 2.0**-7  # relative distance beyond bfloat16: rows farther apart are always different
MARGIN = 32  # two copies of a row must be this many times nearer than different rows of one sample
FARTHEST = MARGIN * COARSEST  # relative distance beyond which neighbours do not matter


class ProjectedRows(NamedTuple):
    """Projected rows.

    Attributes:
        points: shape (rows, directions).
        lengths: the lengths relative to which distances are taken. Shape (rows,).
    """

    points: Array
    lengths: Array

    def distances(self, others: ProjectedRows, *, count: int, within: float) -> Array:
        """Return the relative distances of other rows to their `count` nearest rows here; inf beyond `within`.

        Shape (others, count).
        """
        tree = require("scipy.spatial").cKDTree(self.points)
        longest = max(self.lengths.max(), others.lengths.max())
        bound = float(np.nextafter(within * longest, np.inf))
        found, at = tree.query(others.points, k=list(range(1, count + 1)), distance_upper_bound=bound)
        lengths = np.append(self.lengths, 1.0)[at]  # cKDTree returns the index len(points) for a missing neighbour
        longer = np.maximum(lengths, others.lengths[:, None])
        relative: Array = np.divide(found, longer, out=np.where(found > 0, np.inf, 0.0), where=longer > 0)
        return relative

    def distinct(self) -> tuple[ProjectedRows, Counts]:
        """Return every row once, and its count. A tree with thousands of equal points would be slow."""
        keys = self.points.view(np.dtype((np.void, self.points.strides[0]))).ravel()
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        return ProjectedRows(self.points[first], self.lengths[first]), counts

    def match_rule(self) -> MatchRule:
        """Return the tolerance that suits the distances between different rows of the sample."""
        chosen = np.unique(np.linspace(0, len(self.points) - 1, NEIGHBOUR_ROWS).astype(int))
        some = ProjectedRows(self.points[chosen], self.lengths[chosen])
        near = self.distinct()[0].distances(some, count=5, within=FARTHEST)
        return MatchRule.of(np.where(near > ROUNDING, near, np.inf).min(1))


class MatchRule(NamedTuple):
    """The rule by which two rows count as the same.

    Attributes:
        tolerance: the relative distance up to which two rows count as the same.
        chance: the share of rows that have a different row within the tolerance by chance. It matters for
            one-dimensional data only.
    """

    tolerance: float
    chance: float

    @classmethod
    def of(cls, nearest: Array) -> MatchRule:
        """Return the rule for a sample, given the distances of rows to their nearest different row.

        The tolerance is 1/32 of the distance within which one row in a hundred has a neighbour. The share of rows with
        a neighbour within eight times that distance gives the dimension of the data. From the dimension follows the
        share of rows that have a neighbour within the tolerance by chance.
        """
        closest = float(np.quantile(nearest, 0.01, method="lower")) * min(1.0, len(nearest) / 100)
        if closest >= FARTHEST:
            return cls(COARSEST, 0.0)
        if closest <= MARGIN * ROUNDING:
            chance = max(_upper_share(nearest, 2 * ROUNDING), _upper_share(nearest, MARGIN * ROUNDING) / MARGIN)
            return cls(ROUNDING, chance)
        wide, few = min(8 * closest, FARTHEST), max(_share(nearest, closest), 1 / len(nearest))
        dimension = math.log(max(_share(nearest, wide), few) / few) / math.log(wide / closest)
        return cls(closest / MARGIN, few * MARGIN ** -max(dimension, 1.0))

    def more_than_chance(self, count: int, rows: int) -> int:
        """Return a count of equal rows; 0 if it is within three standard errors of the count expected by chance."""
        expected = self.chance * rows
        return count if count > expected + 3 * math.sqrt(expected) else 0


class RowFingerprints(NamedTuple):
    """The projected rows of a sample. They recognise its rows and need little memory.

    Attributes:
        scale: the spread of every column. Shape (columns,).
        rows: the projected rows.
    """

    scale: Tensor
    rows: ProjectedRows

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> RowFingerprints:
        """Read a sample once.

        Raises:
            DataError: there is no row, rows hold no numbers, or rows are not equally long.
        """
        inputs = _inputs(batches)
        first: list[Tensor] = []
        while sum(map(len, first)) < SCALE_ROWS and (part := next(inputs, None)) is not None:
            first.append(part)
        if not first:
            raise DataError("a sample without rows has no identity: it is empty, or can be read only once")
        _check_width(first[0].shape[1], first)
        scale = _spread(torch.cat(first))
        return cls(scale, _project(scale, _chain(first, inputs)))

    def shared(self, batches: Iterable[Batch]) -> int:
        """Return how many rows of another sample are also rows of this sample."""
        others = _project(self.scale, _inputs(batches))
        rule = self.rows.match_rule()
        distances = self.rows.distinct()[0].distances(others, count=1, within=rule.tolerance)
        near = distances[:, 0] <= rule.tolerance
        return rule.more_than_chance(int(near.sum()), len(near))

    def contain(self, batches: Iterable[Batch]) -> bool:
        """Return True if all rows of some batches are rows of this sample."""
        others = _project(self.scale, _inputs(batches))
        tolerance = self.rows.match_rule().tolerance
        distances = self.rows.distinct()[0].distances(others, count=1, within=tolerance)
        return bool((distances <= tolerance).all())

    def repeated(self) -> int:
        """Return how many rows are equal to another row of the sample, up to float32 rounding."""
        once, counts = self.rows.distinct()
        second = once.distances(once, count=2, within=ROUNDING)[:, 1] <= ROUNDING
        return self.rows.match_rule().more_than_chance(int(counts[second | (counts > 1)].sum()), int(counts.sum()))


def _share(nearest: Array, within: float) -> float:
    return float((nearest <= within).mean())


def _upper_share(nearest: Array, within: float) -> float:
    """Return the share plus three standard errors, since it is estimated from some of the rows."""
    share = _share(nearest, within)
    return share + 3 * math.sqrt(share / len(nearest))


def _inputs(batches: Iterable[Batch]) -> Iterator[Tensor]:
    """Return the inputs as rows of float64 numbers, in blocks. Shapes (block, columns).

    The target is left out: the last part of a tuple, or the entries of a mapping whose names are in `TARGETS`.
    """
    for batch in batches:
        parts = [tensor.detach().to_dense() for tensor in tensors_in(_without_target(batch.data))]
        if not parts:
            raise DataError("rows without a tensor cannot be told apart; give a DataMark one identifier per row")
        for start in range(0, len(parts[0]), BLOCK):
            columns = [_numbers(part[start : start + BLOCK]) for part in parts]
            yield torch.cat(columns, 1).nan_to_num(0.0, 0.0, 0.0)


def _without_target(data: Any) -> Any:
    """Return a batch without its target. The entries of a mapping are in the order of their names."""
    if isinstance(data, Mapping):
        names = [name for name in sorted(data, key=str) if str(name).lower() not in TARGETS]
        return [data[name] for name in names or sorted(data, key=str)]
    found = split_target(data)
    return data if found is None else found.arguments


def _numbers(part: Tensor) -> Tensor:
    part = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
    return part.double().reshape(len(part), -1)


def _spread(rows: Tensor) -> Tensor:
    """Return the standard deviation of every column; for a constant column its value, at least the median spread."""
    spread = rows.std(0, correction=0)
    varies = spread > ROUNDING * rows.abs().amax(0)
    typical = spread[varies].median() if bool(varies.any()) else torch.ones((), dtype=rows.dtype, device=rows.device)
    return torch.where(varies, spread, torch.maximum(rows.abs().amax(0), typical))


def _project(scale: Tensor, parts: Iterable[Tensor]) -> ProjectedRows:
    """Return the rows in a few coordinates, in which distances are the true ones up to chance."""
    directions, shrinkage = _directions(len(scale))
    found = []
    for part in parts:
        _check_width(len(scale), [part])
        scaled = part / scale.to(part.device)
        points = scaled if directions is None else scaled @ directions.to(part.device)
        found.append(torch.cat([points, shrinkage * scaled.norm(dim=1, keepdim=True)], 1).cpu())
    joined = torch.cat(found).numpy()
    return ProjectedRows(np.ascontiguousarray(joined[:, :-1]), joined[:, -1].copy())


def _directions(columns: int) -> tuple[Tensor | None, float]:
    """Return orthonormal directions, and a factor on a row's length that bounds the length of its projection.

    The projection of a difference in d columns has about √(8/d) of its length; more than twice that has probability
    1e-4.
    """
    if columns <= DIRECTIONS:
        return None, 1.0
    drawn = torch.randn(
        columns, DIRECTIONS, generator=torch.Generator(device="cpu").manual_seed(0), dtype=torch.float64, device="cpu"
    )
    return torch.linalg.qr(drawn).Q, min(1.0, 2 * math.sqrt(DIRECTIONS / columns))


def _check_width(columns: int, parts: Iterable[Tensor]) -> None:
    for part in parts:
        if part.shape[1] != columns:
            raise DataError(
                f"rows of {columns} and of {part.shape[1]} numbers cannot be compared; "
                "give a DataMark one identifier per row"
            )


def _chain(first: list[Tensor], rest: Iterator[Tensor]) -> Iterator[Tensor]:
    while first:
        yield first.pop(0)
    yield from rest
