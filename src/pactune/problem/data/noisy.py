"""A data set whose inputs get fresh noise at every step of training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

from pactune.nested import flatten
from pactune.problem.data.source import Batch, Source
from pactune.problem.model_inputs import inputs_and_target
from pactune.streams import Streams

__all__ = ["NoisyInputs"]

NOISE = Streams(0)
DRAWS = 64  # kept, since the models of a search, which run together, share the noise of a step


class NoisyInputs(Source):
    """Another data set with Gaussian noise on the inputs of its mini-batches. An evaluation sees the rows as they are.

    The model is asked to be right in the whole neighbourhood of a row, so a row that is classified with a small margin
    counts more than one with a large margin. A decay shrinks weights for all rows alike.

    The noise is a function of the step and not of the seed. So all models that train on as many rows share it, and what
    depended on no seed without the noise depends on none with it.

    Args:
        source: the data set. Its batches have one tensor of inputs and a target.
        spread: the standard deviation of the noise.
    """

    steady = False

    def __init__(self, source: Source, spread: float) -> None:
        self._source, self._spread = source, spread
        self.replayable, self.draws, self.risk_size = source.replayable, source.draws, source.risk_size

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._source.rows

    @property
    def size(self) -> int | None:
        """The number of rows; None if it is unknown."""
        return self._source.size

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return a mini-batch with noise on its inputs."""
        found = self._source.batch(step, streams, role, reader)
        inputs = inputs_and_target(found.data).arguments[0]
        noise = _draw(NOISE.key("input noise", role, step), inputs.shape, inputs.dtype).to(inputs.device)
        leaves, nesting = flatten(found.data)
        place = next(i for i, leaf in enumerate(leaves) if leaf is inputs)  # a target may be the inputs, too
        leaves[place] = inputs.add(noise, alpha=self._spread)
        return found._replace(data=nesting.restore(leaves))

    def epoch(self) -> Iterator[Batch]:
        """Iterate over the rows as they are."""
        return self._source.epoch()

    def risk_batches(self, round_index: int, streams: Streams, reader: str = "") -> Iterable[Batch]:
        """Return rows as they are."""
        return self._source.risk_batches(round_index, streams, reader)

    def evaluation(self) -> Iterator[Batch]:
        """Iterate over the rows as they are."""
        return self._source.evaluation()

    def first(self) -> Batch:
        """Return the first batch as it is."""
        return self._source.first()

    def with_risk_size(self, size: int | None) -> Source:
        """Return the same data with another `risk_size`."""
        return NoisyInputs(self._source.with_risk_size(size), self._spread)

    def with_mini_batches(self, size: int) -> Source:
        """Return the same data in mini-batches of one size."""
        return NoisyInputs(self._source.with_mini_batches(size), self._spread)

    def reread(self) -> Iterator[Batch]:
        """Read rows of the data set a second time."""
        return self._source.reread()

    def uncached(self) -> Source:
        """Return the same data without cached batches."""
        return NoisyInputs(self._source.uncached(), self._spread)

    def subset(self, rows: Tensor) -> Source:
        """Return some rows, with noise of the same spread."""
        return NoisyInputs(self._source.subset(rows), self._spread)

    def fingerprint(self) -> str:
        """Return the text of the data set and the spread."""
        return f"{self._source.fingerprint()}, inputs with noise of {self._spread:.6g}"


@lru_cache(maxsize=DRAWS)
def _draw(key: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return standard Gaussian noise; nobody may change it."""
    generator = torch.Generator("cpu").manual_seed(key)
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
