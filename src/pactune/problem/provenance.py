"""Provenance: which data touched which thing, so that a certificate can refuse what its theorem does not cover.

Data are known by their rows, not by their names: two samples overlap when they share a row, however they were cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pactune.errors import DataError
from pactune.problem.data import Source, as_source
from pactune.problem.row_identity import RowSketch

__all__ = ["DataMark", "Provenance"]


@dataclass(frozen=True, eq=False)
class DataMark:
    """A sample and the identity of its rows.

    Args:
        name: for messages.
        source: the sample: tensors, a `Dataset`, a `DataLoader`, or what a `Problem` made of them.
        rows: one identifier per row. By default a row is known by its inputs, up to rounding, so two equal rows are
            one. Give identifiers where equal rows are different observations, or where rows change when they are read
            (augmentation). Samples that are compared must both have identifiers, or neither.
    """

    name: str
    source: Any
    rows: Sequence[object] | None = None

    @cached_property
    def data(self) -> Source:
        """The sample as a source of batches."""
        return as_source(self.source, role=self.name, device=_device(self.source))

    @cached_property
    def size(self) -> int:
        """The number of rows."""
        return self.data.rows

    @cached_property
    def identifiers(self) -> list[object] | None:
        """The identifiers that were given, as plain values; None where rows are known by their inputs."""
        if self.rows is None:
            return None
        if len(self.rows) != self.size:
            raise DataError(f"`rows` must hold one identifier for each of {self.size} rows, got {len(self.rows)}")
        return [_plain(row) for row in self.rows]

    @cached_property
    def sketch(self) -> RowSketch:
        """What the rows are known by where they have no identifiers.

        Raises:
            DataError: the rows change when they are read again.
        """
        sketch = RowSketch.of(self.data.evaluation())
        again = list(self.data.again())
        if again and not sketch.holds(again):
            raise DataError(
                f"the rows of {self.name} change when they are read again (augmentation, or a sampler that draws); "
                "give DataMark(name, data, rows=...) an identifier of the underlying row for every row"
            )
        return sketch

    def shared(self, other: DataMark) -> int:
        """Return how many rows of another sample are rows of this one.

        Raises:
            DataError: the rows of the two samples cannot be compared.
        """
        mine, others = self.identifiers, other.identifiers
        if mine is not None and others is not None:
            known = set(mine)
            return sum(row in known for row in others)
        if mine is None and others is None:
            _ = other.sketch  # the other's rows must not change either
            return self.sketch.shared(other.data.evaluation())
        raise DataError(
            f"{self.name if others is None else other.name} has identifiers and "
            f"{other.name if others is None else self.name} has none; give both samples identifiers, or neither"
        )

    def repeated(self) -> int:
        """Return how many rows of the sample equal another of its rows."""
        if self.identifiers is None:
            return self.sketch.repeated()
        return sum(count for count in Counter(self.identifiers).values() if count > 1)

    def light(self) -> DataMark:
        """Return the same mark with less in memory: it can be compared with samples that still have their data.

        Tensors are let go. Data that have to be read are not read for this; they are kept without what was cached.
        """
        if self.rows is None and self.data.draws:
            return DataMark(self.name, self.data.bare())
        twin = DataMark(self.name, None, self.rows)
        kept: dict[str, Any] = {"size": self.size, "identifiers": self.identifiers}
        twin.__dict__.update(kept if self.rows is not None else {**kept, "sketch": self.sketch})
        return twin

    def describe(self) -> str:
        """Return name and size."""
        return f"{self.name} ({self.size} rows)"


@dataclass(frozen=True)
class Provenance:
    """For every thing (model, hyperparameters, prior, ...) the samples that touched it.

    Immutable; `touch` returns a new one. What is not recorded is not known, and a certificate that needs it is
    refused, unless `stated` says in words that somebody vouches for it.

    Example:
        >>> import torch
        >>> train, fresh = DataMark("train", torch.eye(4)), DataMark("fresh", 2 + torch.eye(4))
        >>> provenance = Provenance().touch("model", train)
        >>> provenance.touches("model", fresh), provenance.touches("model", train)
        ([], ['train (4 rows) shares 4 rows with train (4 rows)'])
    """

    touched: Mapping[str, tuple[DataMark, ...]] = field(default_factory=dict)
    stated: tuple[str, ...] = ()

    def touch(self, thing: str, *sample_ids: DataMark) -> Provenance:
        """Record that samples had a part in a thing; without samples, that none had."""
        before = self.touched.get(thing, ())
        fresh = tuple(mark for mark in sample_ids if all(mark is not old for old in before))
        return replace(self, touched={**self.touched, thing: (*before, *fresh)})

    def state(self, words: str) -> Provenance:
        """Record what somebody vouches for; it is printed with every certificate."""
        return replace(self, stated=(*self.stated, words))

    def knows(self, thing: str) -> bool:
        """Say whether it is recorded what touched a thing."""
        return thing in self.touched

    def touches(self, thing: str, sample: DataMark) -> list[str]:
        """Return, in words, every way in which a sample touched a thing, or may have touched it."""
        return [words for mark in self.touched.get(thing, ()) if (words := _overlap(mark, sample))]

    def describe(self) -> dict[str, Any]:
        """Return what is known as plain data."""
        things = {thing: [mark.describe() for mark in sample_ids] for thing, sample_ids in self.touched.items()}
        return {"touched": things, "stated": list(self.stated)}


def _overlap(mark: DataMark, sample: DataMark) -> str:
    """Return in words what two samples share; nothing where they share nothing."""
    try:
        count = mark.shared(sample)
    except DataError as error:
        return f"{mark.describe()} cannot be told from {sample.describe()}: {error}"
    return f"{mark.describe()} shares {count} rows with {sample.describe()}" if count else ""


def _device(data: Any) -> torch.device:
    """Return where the first tensor is."""
    parts = data if isinstance(data, (list, tuple)) else [data]
    return next((part.device for part in parts if isinstance(part, Tensor)), torch.device("cpu"))


def _plain(row: object) -> object:
    """Return an identifier as a plain value: numbers of torch and NumPy are equal to Python's."""
    value = row.item() if hasattr(row, "item") else row
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
