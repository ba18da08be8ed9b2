"""The demo's problem: a linear classifier of 100 images of scikit-learn's digits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pactune.errors import SettingError
from pactune.extras import require
from pactune.results.result import Result
from pactune.search.tune import tune
from pactune.streams import Streams

__all__ = ["ROWS", "Digits", "load_digits", "run_demo"]

ROWS = 100


class Digits(NamedTuple):
    """The drawn images of digits, and all others as a test set; pixels in [0, 1]."""

    data: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load_digits(rows: int, seed: int) -> Digits:
    """Draw images; all other images are the test set."""
    pixels, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    if not 20 <= rows <= len(pixels) // 2:
        raise SettingError(f"`rows` must be between 20 and {len(pixels) // 2}, got {rows}")
    order = torch.randperm(len(pixels), generator=Streams(seed).generator("digits"), device="cpu")
    x, y = torch.from_numpy(pixels).float()[order] / 16, torch.from_numpy(labels)[order]
    return Digits((x[:rows], y[:rows]), (x[rows:], y[rows:]))


def run_demo(seed: int, *, progress: bool | None = None) -> Result:
    """Run `pt.tune` on the images of a seed.

    Raises:
        KeyboardInterrupt: the run was interrupted, so there is nothing to show.
    """
    digits = load_digits(ROWS, seed)
    loss = functional.cross_entropy
    result = tune(_linear(seed), digits.data, loss=loss, test=digits.test, seed=seed, progress=progress)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    return result


def _linear(seed: int) -> nn.Linear:
    """Return a linear classifier whose weights are a function of the seed."""
    model = nn.Linear(64, 10)
    generator = Streams(seed).generator("linear")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.125, 0.125, generator=generator)
    return model
