"""Provenance: which samples touched the model, λ and the prior. A certificate needs it to check its theorem.

Samples are compared by their rows, not by their names: two samples overlap if they share a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from pactune.errors import DataError
from pactune.nested import tensors_in
from pactune.problem.data import Source, as_source
from pactune.problem.row_identity import RowFingerprints

__all__ = ["DataMark", "Provenance", "UnknownSample"]


@dataclass(frozen=True, eq=False)
class DataMark:
    """A sample and the identity of its rows.

    Args:
        name: for messages.
        source: the sample: tensors, a `Dataset`, a `DataLoader`, or `problem.train`.
        rows: one identifier per row. By default rows are compared by their inputs, up to rounding. Give identifiers if
            equal rows are different observations, or if rows change when they are read (augmentation). Two samples
            can be compared if both have identifiers, or neither.
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
        """The identifiers as plain values; None if rows are compared by their inputs."""
        if self.rows is None:
            return None
        if len(self.rows) != self.size:
            raise DataError(f"`rows` must hold one identifier for each of {self.size} rows, got {len(self.rows)}")
        return [_plain(row) for row in self.rows]

    @cached_property
    def fingerprints(self) -> RowFingerprints:
        """The fingerprints of the rows, for samples without identifiers.

        Raises:
            DataError: the rows change when they are read again.
        """
        fingerprints = RowFingerprints.of(self.data.evaluation())
        again = list(self.data.reread())
        if again and not fingerprints.contain(again):
            raise DataError(
                f"the rows of {self.name} change when they are read again (augmentation, or a sampler that draws); "
                "give DataMark(name, data, rows=...) an identifier of the underlying row for every row"
            )
        return fingerprints

    def shared(self, other: DataMark) -> int:
        """Return how many rows of another sample are also rows of this sample.

        Raises:
            DataError: the rows of the two samples cannot be compared.
        """
        mine, others = self.identifiers, other.identifiers
        if mine is not None and others is not None:
            known = set(mine)
            return sum(row in known for row in others)
        if mine is None and others is None:
            _ = other.fingerprints  # raises if the rows of the other sample change
            return self.fingerprints.shared(other.data.evaluation())
        raise DataError(
            f"{self.name if others is None else other.name} has identifiers and "
            f"{other.name if others is None else self.name} has none; give both samples identifiers, or neither"
        )

    def repeated(self) -> int:
        """Return how many rows of the sample are equal to another row of it."""
        if self.identifiers is None:
            return self.fingerprints.repeated()
        return sum(count for count in Counter(self.identifiers).values() if count > 1)

    def without_data(self) -> DataMark:
        """Return the same mark with less in memory. It can be compared with samples that still have their data.

        Tensors are freed. A data set that has to be read is kept, without its cached batches.
        """
        if self.rows is None and self.data.draws:
            return DataMark(self.name, self.data.uncached())
        twin = DataMark(self.name, None, self.rows)
        kept: dict[str, Any] = {"size": self.size, "identifiers": self.identifiers}
        twin.__dict__.update(kept if self.rows is not None else {**kept, "fingerprints": self.fingerprints})
        return twin

    def describe(self) -> str:
        """Return the name and the number of rows."""
        return f"{self.name} ({self.size} rows)"


@dataclass(frozen=True, eq=False)
class UnknownSample(DataMark):
    """A sample whose rows are not kept, such as tasks that a function draws. It may share rows with any other."""

    source: Any = None

    def shared(self, other: DataMark) -> int:
        """Raise, since the rows cannot be compared.

        Raises:
            DataError: always.
        """
        raise DataError(f"the rows of {self.name} are not kept, so nobody can say that {other.name} is new to them")

    def without_data(self) -> DataMark:
        """Return this mark, which holds no data."""
        return self

    def describe(self) -> str:
        """Return the name."""
        return f"{self.name} (rows not kept)"


@dataclass(frozen=True)
class Provenance:
    """For every thing ("model", "hyper", "prior", …) the samples that touched it.

    Immutable; `touch` returns a new one. A certificate is refused if it needs a record that is missing. `stated` lists
    in words what the user vouches for.

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
        """Record that samples touched a thing; without samples, record that no sample did."""
        before = self.touched.get(thing, ())
        fresh = tuple(mark for mark in sample_ids if all(mark is not old for old in before))
        return replace(self, touched={**self.touched, thing: (*before, *fresh)})

    def state(self, words: str) -> Provenance:
        """Record a statement that the user vouches for; every certificate prints it."""
        return replace(self, stated=(*self.stated, words))

    def knows(self, thing: str) -> bool:
        """Return True if there is a record of the samples that touched a thing."""
        return thing in self.touched

    def touches(self, thing: str, sample: DataMark) -> list[str]:
        """Return a sentence for every recorded sample that shares rows with `sample`, or may share rows with it."""
        return [words for mark in self.touched.get(thing, ()) if (words := _overlap(mark, sample))]

    def describe(self) -> dict[str, Any]:
        """Return the records as plain data."""
        things = {thing: [mark.describe() for mark in sample_ids] for thing, sample_ids in self.touched.items()}
        return {"touched": things, "stated": list(self.stated)}


def _overlap(mark: DataMark, sample: DataMark) -> str:
    """Return in words how many rows two samples share; an empty text if they share none."""
    try:
        count = mark.shared(sample)
    except DataError as error:
        return f"{mark.describe()} cannot be told from {sample.describe()}: {error}"
    return f"{mark.describe()} shares {count} rows with {sample.describe()}" if count else ""


def _device(data: Any) -> torch.device:
    """Return the device of the first tensor."""
    return next((tensor.device for tensor in tensors_in(data)), torch.device("cpu"))


def _plain(row: object) -> object:
    """Return an identifier as a plain value, so that numbers of torch and NumPy equal Python's."""
    value = row.item() if hasattr(row, "item") else row
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
