"""A data set with its floating-point tensors in another type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from pactune.nested import map_tensors
from pactune.problem.data.source import Batch, BatchesAnew, Source
from pactune.problem.data.wrapped import WrappedSource
from pactune.streams import Streams

__all__ = ["in_type"]


def in_type(source: Source, dtype: torch.dtype) -> Source:
    """Return the source with its floating-point tensors in another type."""
    return _InType(source, dtype)


class _InType(WrappedSource):
    """Another data set with its floating-point tensors in another type."""

    def __init__(self, source: Source, dtype: torch.dtype) -> None:
        super().__init__(source)
        self._dtype = dtype

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        return self._cast(super().batch(step, streams, role, reader))

    def epoch(self) -> Iterator[Batch]:
        return map(self._cast, super().epoch())

    def risk_batches(self, round_index: int, streams: Streams, reader: str = "") -> Iterable[Batch]:
        batches = super().risk_batches(round_index, streams, reader)
        return BatchesAnew(lambda: map(self._cast, batches))

    def evaluation(self) -> Iterator[Batch]:
        return map(self._cast, super().evaluation())

    def subset(self, rows: Tensor) -> Source:
        return in_type(self.present.subset(rows), self._dtype)

    def _cast(self, batch: Batch) -> Batch:
        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

        return batch._replace(data=map_tensors(batch.data, convert))
