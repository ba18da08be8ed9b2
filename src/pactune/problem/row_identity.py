"""Which rows of two samples are the same observation, whatever their type and up to rounding.

A row is known by its inputs: a training row with another label is still that training row. Each column is divided by
its spread, and the row is projected onto a few fixed directions. Two rows are the same when their distance is small
beside their length. "Small" adapts to the data: it is 1/32 of the distance at which rows of one sample begin to meet.
So images are recognised after rounding to bfloat16, and neighbours on a line are still told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pactune.errors import DataError
from pactune.extras import require
from pactune.problem.data import Batch

__all__ = ["RowSet", "RowSketch"]

Array = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]
DIRECTIONS = 8  # coordinates that are kept of a row; rows of fewer columns keep all of them
SCALE_ROWS = 1024  # rows from which the spread of the columns is found
BLOCK = 512  # rows that are projected at once
SPACING_ROWS = 1000  # rows whose distance to their neighbours is looked at
ROUNDING = 2.0**-20  # a relative distance that float32 arithmetic explains: such rows are always the same
COARSEST = 2.0**-7  # a relative distance beyond bfloat16: rows farther apart are always different
MARGIN = 32  # how much nearer than two rows of one sample the two copies of a row must be
FARTHEST = MARGIN * COARSEST  # a relative distance beyond which neighbours do not matter
TARGETS = {"y", "label", "labels", "target", "targets"}


class RowSet(NamedTuple):
    """Projected rows.

    Attributes:
        points: shape (rows, directions).
        lengths: what distances are compared with. Shape (rows,).
    """

    points: Array
    lengths: Array

    def distances(self, others: RowSet, *, count: int, within: float) -> Array:
        """Return the relative distances of other rows to the nearest rows here; inf beyond `within`.

        Shape (others, count).
        """
        tree = require("scipy.spatial").cKDTree(self.points)
        longest = max(self.lengths.max(), others.lengths.max())
        bound = float(np.nextafter(within * longest, np.inf))
        found, at = tree.query(others.points, k=list(range(1, count + 1)), distance_upper_bound=bound)
        lengths = np.append(self.lengths, 1.0)[at]  # a row without a neighbour has the number that follows the last
        longer = np.maximum(lengths, others.lengths[:, None])
        relative: Array = np.divide(found, longer, out=np.where(found > 0, np.inf, 0.0), where=longer > 0)
        return relative

    def distinct(self) -> tuple[RowSet, Counts]:
        """Return every row once, and how often it occurs. A tree with thousands of equal points would be slow."""
        keys = self.points.view(np.dtype((np.void, self.points.strides[0]))).ravel()
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        return RowSet(self.points[first], self.lengths[first]), counts

    def spacing(self) -> Spacing:
        """Return how near different rows of the sample are, from some of its rows."""
        chosen = np.unique(np.linspace(0, len(self.points) - 1, SPACING_ROWS).astype(int))
        some = RowSet(self.points[chosen], self.lengths[chosen])
        near = self.distinct()[0].distances(some, count=5, within=FARTHEST)
        return Spacing.of(np.where(near > ROUNDING, near, np.inf).min(1))


class Spacing(NamedTuple):
    """What the neighbours of rows say.

    Attributes:
        tolerance: the relative distance up to which two rows are taken for the same.
        chance: the share of rows that meet a different one within the tolerance by chance. It matters on a line only.
    """

    tolerance: float
    chance: float

    @classmethod
    def of(cls, nearest: Array) -> Spacing:
        """Return the spacing from the distances of rows to the nearest different row.

        The tolerance is 1/32 of the distance within which one row in a hundred meets another. How many meet at eight
        times that distance gives the dimension of the data, and so how many meet within the tolerance by chance.
        """
        closest = float(np.quantile(nearest, 0.01, method="lower")) * min(1.0, len(nearest) / 100)
        if closest >= FARTHEST:
            return cls(COARSEST, 0.0)
        if closest <= MARGIN * ROUNDING:
            return cls(ROUNDING, max(_most(nearest, 2 * ROUNDING), _most(nearest, MARGIN * ROUNDING) / MARGIN))
        wide, few = min(8 * closest, FARTHEST), max(_share(nearest, closest), 1 / len(nearest))
        dimension = math.log(max(_share(nearest, wide), few) / few) / math.log(wide / closest)
        return cls(closest / MARGIN, few * MARGIN ** -max(dimension, 1.0))

    def more_than_chance(self, count: int, rows: int) -> int:
        """Return a count of equal rows, or 0 where chance explains it: at most three standard errors more."""
        expected = self.chance * rows
        return count if count > expected + 3 * math.sqrt(expected) else 0


class RowSketch(NamedTuple):
    """The rows of a sample, small enough to be kept when the data are gone.

    Attributes:
        scale: the spread of every column. Shape (columns,).
        rows: the projected rows.
    """

    scale: Tensor
    rows: RowSet

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> RowSketch:
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
        """Return how many rows of another sample are rows of this one."""
        others = _project(self.scale, _inputs(batches))
        spacing = self.rows.spacing()
        distances = self.rows.distinct()[0].distances(others, count=1, within=spacing.tolerance)
        near = distances[:, 0] <= spacing.tolerance
        return spacing.more_than_chance(int(near.sum()), len(near))

    def holds(self, batches: Iterable[Batch]) -> bool:
        """Say whether all rows of some batches are rows of this sample."""
        others = _project(self.scale, _inputs(batches))
        tolerance = self.rows.spacing().tolerance
        distances = self.rows.distinct()[0].distances(others, count=1, within=tolerance)
        return bool((distances <= tolerance).all())

    def repeated(self) -> int:
        """Return how many rows equal another row of the same sample, up to float32 rounding."""
        once, counts = self.rows.distinct()
        second = once.distances(once, count=2, within=ROUNDING)[:, 1] <= ROUNDING
        return self.rows.spacing().more_than_chance(int(counts[second | (counts > 1)].sum()), int(counts.sum()))


def _share(nearest: Array, within: float) -> float:
    return float((nearest <= within).mean())


def _most(nearest: Array, within: float) -> float:
    """Return the share with three standard errors more, since it comes from some of the rows."""
    share = _share(nearest, within)
    return share + 3 * math.sqrt(share / len(nearest))


def _inputs(batches: Iterable[Batch]) -> Iterator[Tensor]:
    """Return the inputs as rows of float64 numbers, in blocks. Shapes (block, columns).

    The last part of a tuple is the target, and so are the parts of a dict that are named like one.
    """
    for batch in batches:
        parts: list[Tensor] = []
        _collect(_without_target(batch.data), parts)
        if not parts:
            raise DataError("rows without a tensor cannot be told apart; give a DataMark one identifier per row")
        for start in range(0, len(parts[0]), BLOCK):
            columns = [_numbers(part[start : start + BLOCK]) for part in parts]
            yield torch.cat(columns, 1).nan_to_num(0.0, 0.0, 0.0)


def _without_target(data: Any) -> Any:
    if isinstance(data, (list, tuple)) and len(data) >= 2:
        return data[:-1]
    if isinstance(data, dict):
        return {name: part for name, part in data.items() if str(name).lower() not in TARGETS} or data
    return data


def _collect(value: Any, parts: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        parts.append(value.detach() if value.layout == torch.strided else value.detach().to_dense())
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            _collect(value[name], parts)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _collect(part, parts)


def _numbers(part: Tensor) -> Tensor:
    part = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
    return part.double().reshape(len(part), -1)


def _spread(rows: Tensor) -> Tensor:
    """Return the standard deviation of every column; a constant column takes its own size, or that of the others."""
    spread = rows.std(0, correction=0)
    varies = spread > ROUNDING * rows.abs().amax(0)
    typical = spread[varies].median() if bool(varies.any()) else torch.ones((), dtype=rows.dtype, device=rows.device)
    return torch.where(varies, spread, torch.maximum(rows.abs().amax(0), typical))


def _project(scale: Tensor, parts: Iterable[Tensor]) -> RowSet:
    """Return the rows in a few coordinates; a distance there is the true one, up to chance."""
    directions, reach = _directions(len(scale))
    found = []
    for part in parts:
        _check_width(len(scale), [part])
        scaled = part / scale.to(part.device)
        points = scaled if directions is None else scaled @ directions.to(part.device)
        found.append(torch.cat([points, reach * scaled.norm(dim=1, keepdim=True)], 1).cpu())
    together = torch.cat(found).numpy()
    return RowSet(np.ascontiguousarray(together[:, :-1]), together[:, -1].copy())


def _directions(columns: int) -> tuple[Tensor | None, float]:
    """Return orthonormal directions, and what a length has to be multiplied by to bound its projection.

    A difference in d columns keeps a share of about √(8/d) of its length; more than twice that has probability 1e-4.
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
