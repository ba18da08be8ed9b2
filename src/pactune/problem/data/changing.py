"""A data set that is exchanged from outer step to outer step, and the absence of one."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pactune.problem.data.source import Batch, Source
from pactune.problem.data.wrapped import WrappedSource
from pactune.streams import Streams

__all__ = ["ExchangedSource", "NoRows"]


class ExchangedSource(WrappedSource):
    """Stands for a data set that changes between outer steps, such as the present task of a meta-learner.

    A problem keeps this object, so that steps which are recorded for one data set also serve the next one.
    """

    def exchange(self, source: Source) -> None:
        """Stand for another data set from now on."""
        self._wrap(source)

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
