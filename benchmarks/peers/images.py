"""MNIST from the folder `data`, and images of its shape where the folder is absent."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pactune.paper.data import load_images

__all__ = ["digits", "noisy"]


def digits(rows: int) -> tuple[Tensor, Tensor]:
    """Return the first rows of MNIST as vectors in [0, 1]; without its files, noise around ten random images."""
    images = load_images("mnist", Path("data"), download=False)
    if images is None:
        generator = torch.Generator().manual_seed(0)
        y = torch.randint(0, 10, (rows,), generator=generator)
        centres = torch.rand(10, 784, generator=generator)
        return centres[y] + 0.3 * torch.randn(rows, 784, generator=generator), y
    x, y = images.pool
    return x[:rows].flatten(1).float() / 255, y[:rows]


def noisy(y: Tensor, share: float) -> Tensor:
    """Return labels of which a share was replaced by a random class."""
    generator = torch.Generator().manual_seed(1)
    wrong = torch.rand(len(y), generator=generator) < share
    return torch.where(wrong, torch.randint(0, 10, (len(y),), generator=generator), y)
