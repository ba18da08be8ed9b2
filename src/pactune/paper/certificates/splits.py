"""Two samples and a test set for the certificates: scikit-learn's digits, or MNIST from a folder."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from pactune.errors import DataError
from pactune.extras import require
from pactune.paper.data import parse_idx
from pactune.streams import Streams

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Split", "read_mnist", "split_digits", "split_mnist"]

Pair = tuple[Tensor, Tensor]
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class Split(NamedTuple):
    """S_T, S_V and test rows, which enter the report only."""

    train: Pair
    valid: Pair
    test: Pair

    def to(self, device: str | torch.device) -> Split:
        """Return the split on a device."""
        return Split(*((x.to(device), y.to(device)) for x, y in self))

    def centred_by(self, sample: Literal["train", "valid"]) -> Split:
        """Subtract the mean image of one sample from all images; choose the sample that is not the bound sample.

        The mean image makes up most of a gradient's length, and it multiplies the difference between the class counts
        of the two samples. Without it the two chains are several times nearer, and the model can still make the same
        predictions, since it has a bias.
        """
        mean = getattr(self, sample)[0].mean(0)
        return Split(*((x - mean, y) for x, y in self))


def split_digits(train: int, valid: int, seed: int) -> Split:
    """Split the 1797 digits at random; pixels in [0, 1]."""
    pixels, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=Streams(seed).generator("certificate digits"), device="cpu")
    x, y = torch.from_numpy(pixels).float()[order] / 16, torch.from_numpy(labels)[order]
    cuts = (slice(0, train), slice(train, train + valid), slice(train + valid, None))
    return Split(*((x[cut], y[cut]) for cut in cuts))


def split_mnist(folder: Path, train: int, valid: int, seed: int) -> Split:
    """Split the 60,000 training images at random; the test images are the test set. Pixels in [0, 1]."""
    x, y, test_x, test_y = read_mnist(folder)
    order = torch.randperm(len(x), generator=Streams(seed).generator("certificate mnist"), device="cpu")
    first, second = order[:train], order[train : train + valid]
    return Split((x[first], y[first]), (x[second], y[second]), (test_x, test_y))


def read_mnist(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read the four idx files, plain or gzipped, or `mnist.npz` (x_train, y_train, x_test, y_test).

    Raises:
        DataError: the folder holds neither.
    """
    import numpy as np

    archive = folder / "mnist.npz"
    if archive.exists():
        with np.load(archive) as held:
            arrays = [held[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    else:
        arrays = [_read_idx(folder, name) for name in FILES]
    images = [torch.from_numpy(a.reshape(len(a), -1).astype("float32") / 255) for a in arrays[::2]]
    labels = [torch.from_numpy(a.astype("int64")) for a in arrays[1::2]]
    return images[0], labels[0], images[1], labels[1]


def _read_idx(folder: Path, name: str) -> np.ndarray[Any, Any]:
    plain, zipped = folder / name, folder / f"{name}.gz"
    if not (plain.exists() or zipped.exists()):
        raise DataError(
            f"no {name} in {folder}; put the four MNIST idx files (or mnist.npz) there, or name their folder"
        )
    content = plain.read_bytes() if plain.exists() else gzip.decompress(zipped.read_bytes())
    return parse_idx(content)
