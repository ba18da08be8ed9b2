"""Provenance: which data touched which thing, so that a certificate can refuse what its theorem does not cover.

Data are known by their rows, not by their names: two samples overlap when they share a row, however they were cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pactune.data import Source
from pactune.errors import DataError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DataMark", "Provenance"]


@dataclass(frozen=True, eq=False)
class DataMark:
    """A sample and the identity of its rows.

    Args:
        name: for messages.
        source: the sample.
        rows: one identifier per row. By default a row is known by its content, so two equal rows are one; give
            identifiers where equal rows are different observations.
    """

    name: str
    source: Source
    rows: Sequence[object] | None = None

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.source.rows

    @cached_property
    def keys(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """A 64-bit key per row; found when first asked for."""
        import numpy as np

        if self.rows is not None:
            if len(self.rows) != self.size:
                raise DataError(f"`rows` must hold one identifier for each of {self.size} rows, got {len(self.rows)}")
            return np.array([_key(repr(row).encode()) for row in self.rows], dtype=np.uint64)
        parts = [_row_keys(batch.data) for batch in self.source.evaluation()]
        return np.concatenate(parts)

    def shared(self, other: DataMark) -> int:
        """Return how many different rows two samples have in common."""
        import numpy as np

        return len(np.intersect1d(self.keys, other.keys))

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
        >>> from pactune.data import as_source
        >>> def mark(name, x):
        ...     return DataMark(name, as_source(x, role=name, device=torch.device("cpu")))
        >>> train, fresh = mark("train", torch.eye(4)), mark("fresh", 2 * torch.eye(4))
        >>> provenance = Provenance().touch("model", train)
        >>> provenance.touches("model", fresh), provenance.touches("model", train)
        ([], ['train (4 rows) shares 4 rows with train (4 rows)'])
    """

    touched: Mapping[str, tuple[DataMark, ...]] = field(default_factory=dict)
    stated: tuple[str, ...] = ()

    def touch(self, thing: str, *marks: DataMark) -> Provenance:
        """Record that samples had a part in a thing; without samples, that none had."""
        before = self.touched.get(thing, ())
        fresh = tuple(mark for mark in marks if all(mark is not old for old in before))
        return replace(self, touched={**self.touched, thing: (*before, *fresh)})

    def state(self, words: str) -> Provenance:
        """Record what somebody vouches for; it is printed with every certificate."""
        return replace(self, stated=(*self.stated, words))

    def knows(self, thing: str) -> bool:
        """Say whether it is recorded what touched a thing."""
        return thing in self.touched

    def touches(self, thing: str, sample: DataMark) -> list[str]:
        """Return, in words, every way in which a sample touched a thing."""
        return [
            f"{mark.describe()} shares {count} rows with {sample.describe()}"
            for mark in self.touched.get(thing, ())
            if (count := mark.shared(sample))
        ]

    def describe(self) -> dict[str, Any]:
        """Return what is known as plain data."""
        things = {thing: [mark.describe() for mark in marks] for thing, marks in self.touched.items()}
        return {"touched": things, "stated": list(self.stated)}


def _row_keys(data: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a key for the content of each row of a nested batch."""
    import numpy as np
    import torch
    from torch import Tensor

    parts: list[Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, Tensor):
            parts.append(value)
        elif isinstance(value, dict):
            for name in sorted(value):
                collect(value[name])
        elif isinstance(value, (list, tuple)):
            for part in value:
                collect(part)

    collect(data)
    if not parts:
        raise DataError("rows without a tensor cannot be told apart; give a DataMark one identifier per row")
    columns = [part.detach().cpu().contiguous().reshape(len(part), -1).view(torch.uint8).numpy() for part in parts]
    rows = np.ascontiguousarray(np.concatenate(columns, axis=1))
    return np.array([_key(row.tobytes()) for row in rows], dtype=np.uint64)


def _key(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
