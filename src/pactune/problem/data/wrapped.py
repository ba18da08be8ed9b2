"""The base of data sets that give what another data set gives, with some change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pactune.problem.data.source import Batch, Source
from pactune.streams import Streams

__all__ = ["WrappedSource"]


class WrappedSource(Source):
    """Gives the rows of another data set. A subclass changes some of its methods.

    Args:
        source: the other data set.

    Attributes:
        present: the other data set.
    """

    def __init__(self, source: Source) -> None:
        self._wrap(source)

    def _wrap(self, source: Source) -> None:
        """Give the rows of a data set from now on."""
        self.present = source
        self.replayable, self.steady, self.draws = source.replayable, source.steady, source.draws
        self.risk_size = source.risk_size

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.present.rows

    @property
    def size(self) -> int | None:
        """The number of rows; None if it is unknown."""
        return self.present.size

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return a mini-batch."""
        return self.present.batch(step, streams, role, reader)

    def epoch(self) -> Iterator[Batch]:
        """Iterate over the rows."""
        return self.present.epoch()

    def risk_batches(self, round_index: int, streams: Streams, reader: str = "") -> Iterable[Batch]:
        """Return the rows of the risk at θ_T."""
        return self.present.risk_batches(round_index, streams, reader)

    def evaluation(self) -> Iterator[Batch]:
        """Iterate over the rows in larger batches."""
        return self.present.evaluation()
