"""A data set that is exchanged from outer step to outer step, and the absence of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from pactune.problem.data.source import Batch, Source
from pactune.streams import Streams

__all__ = ["ExchangedSource", "NoRows"]


class ExchangedSource(Source):
    """Stands for a data set that changes between outer steps, such as the present task of a meta-learner.

    A problem keeps this object, so that steps which are recorded for one data set also serve the next one.

    Attributes:
        present: the present data set.
    """

    def __init__(self, source: Source) -> None:
        self.exchange(source)

    def exchange(self, source: Source) -> None:
        """Stand for another data set from now on."""
        self.present = source
        self.replayable, self.steady, self.draws = source.replayable, source.steady, source.draws
        self.risk_size = source.risk_size

    @property
    def rows(self) -> int:
        """The number of rows of the present data set."""
        return self.present.rows

    @property
    def size(self) -> int | None:
        """The number of rows of the present data set; None if it is unknown."""
        return self.present.size

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return a mini-batch of the present data set."""
        return self.present.batch(step, streams, role, reader)

    def epoch(self) -> Iterator[Batch]:
        """Iterate over the present data set."""
        return self.present.epoch()

    def risk_batches(self, round_index: int, streams: Streams, reader: str = "") -> Iterable[Batch]:
        """Return rows of the present data set."""
        return self.present.risk_batches(round_index, streams, reader)

    def evaluation(self) -> Iterator[Batch]:
        """Iterate over the present data set."""
        return self.present.evaluation()

    def subset(self, rows: Tensor) -> Source:
        """Return some rows of the present data set."""
        return self.present.subset(rows)


class NoRows(Source):
    """The training set of a problem without training rows: the training loss receives an empty batch, `()`."""

    steady, draws = True, False

    def __init__(self) -> None:
        self._batch = Batch((), 1)

    @property
    def rows(self) -> int:
        """0."""
        return 0

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return the empty batch."""
        return self._batch

    def epoch(self) -> Iterator[Batch]:
        """Yield the empty batch once, since the loss has a value without rows."""
        yield self._batch

    def subset(self, rows: Tensor) -> Source:
        """Return no rows."""
        return self
