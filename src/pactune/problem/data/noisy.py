"""A data set whose inputs get fresh noise at every step of training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from pactune.nested import flatten
from pactune.problem.data.source import Batch, Source
from pactune.problem.data.wrapped import WrappedSource
from pactune.problem.model_inputs import inputs_and_target
from pactune.streams import Streams

__all__ = ["NoisyInputs"]

NOISE = Streams(0)
DRAWS = 64  # kept, since the models of a search, which run together, share the noise of a step


class NoisyInputs(WrappedSource):
    """Another data set with Gaussian noise on the inputs of its mini-batches. An evaluation sees the rows as they are.

    The model is asked to be right in the whole neighbourhood of a row, so a row that is classified with a small margin
    counts more than one with a large margin. A decay shrinks weights for all rows alike.

    The noise is a function of the step and not of the seed. So all models that train on as many rows share it, and what
    depended on no seed without the noise depends on none with it.

    Args:
        source: the data set. Its batches have one tensor of inputs and a target.
        spread: the standard deviation of the noise.
    """

    def __init__(self, source: Source, spread: float) -> None:
        super().__init__(source)
        self._spread, self.steady = spread, False

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Return a mini-batch with noise on its inputs."""
        found = self.present.batch(step, streams, role, reader)
        inputs = inputs_and_target(found.data).arguments[0]
        noise = _draw(NOISE.key("input noise", role, step), inputs.shape, inputs.dtype).to(inputs.device)
        leaves, nesting = flatten(found.data)
        place = next(i for i, leaf in enumerate(leaves) if leaf is inputs)  # a target may be the inputs, too
        leaves[place] = inputs.add(noise, alpha=self._spread)
        return found._replace(data=nesting.restore(leaves))

    def first(self) -> Batch:
        """Return the first batch as it is."""
        return self.present.first()

    def with_risk_size(self, size: int | None) -> Source:
        """Return the same data with another `risk_size`."""
        return NoisyInputs(self.present.with_risk_size(size), self._spread)

    def with_mini_batches(self, size: int) -> Source:
        """Return the same data in mini-batches of one size."""
        return NoisyInputs(self.present.with_mini_batches(size), self._spread)

    def reread(self) -> Iterator[Batch]:
        """Read rows of the data set a second time."""
        return self.present.reread()

    def uncached(self) -> Source:
        """Return the same data without cached batches."""
        return NoisyInputs(self.present.uncached(), self._spread)

    def subset(self, rows: Tensor) -> Source:
        """Return some rows, with noise of the same spread."""
        return NoisyInputs(self.present.subset(rows), self._spread)

    def fingerprint(self) -> str:
        """Return the text of the data set and the spread."""
        return f"{self.present.fingerprint()}, inputs with noise of {self._spread:.6g}"


@lru_cache(maxsize=DRAWS)
def _draw(key: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return standard Gaussian noise; nobody may change it."""
    generator = torch.Generator("cpu").manual_seed(key)
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
