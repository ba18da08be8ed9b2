"""The images of the paper's experiments: fixed draws from the official training sets, and the full test sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pactune.errors import DataError, SettingError
from pactune.extras import require
from pactune.paper.downloads import CIFAR10, MNIST, data_home, ensure_files, find_files

__all__ = ["DATA_NAMES", "DataName", "Draw", "Images", "load_images", "parse_cifar", "parse_idx"]

DataName = Literal["mnist", "cifar10", "digits"]
DATA_NAMES: tuple[DataName, ...] = ("mnist", "cifar10", "digits")
Pair = tuple[Tensor, Tensor]
_CIFAR_SHAPE = (3, 32, 32)
_DIGITS_TEST = 797  # number of digits, the last of the 1797, that belong to no draw


class Draw(NamedTuple):
    """The images of one draw: S_T and S_V."""

    train: Pair
    valid: Pair


class Images(NamedTuple):
    """A data set; draws and the test set are scaled for the models.

    Attributes:
        name: name of the data set.
        pool: the official training set, from which draws come. Pixels (n, channels, height, width), unscaled, and
            labels (n,).
        held: the full official test set, in the same form.
        scale: the pixel x of a file becomes x / scale[0] + scale[1] in the model.
    """

    name: DataName
    pool: Pair
    held: Pair
    scale: tuple[float, float]

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.pool[0].shape[1:])

    @property
    def test(self) -> Pair:
        """The full official test set, scaled."""
        return self._scaled(self.held[0]), self.held[1]

    def draw(self, number: int, rows: int = 50) -> Draw:
        """Return draw `number`: the first rows of a permutation that is a function of the number alone.

        The first `rows` train, the next `rows` validate.
        """
        x, y = self.pool
        if not 1 <= rows <= len(y) // 2:
            raise SettingError(f"`rows` must be between 1 and {len(y) // 2}, half of {self.name}, got {rows}")
        order = np.random.default_rng(number).permutation(len(y))
        first, second = (torch.from_numpy(part) for part in (order[:rows], order[rows : 2 * rows]))
        return Draw((self._scaled(x[first]), y[first]), (self._scaled(x[second]), y[second]))

    def _scaled(self, pixels: Tensor) -> Tensor:
        return pixels.float() / self.scale[0] + self.scale[1]


def load_images(
    name: DataName,
    folder: Path | None = None,
    *,
    download: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Images | None:
    """Read a data set, pixels in [0, 1] (MNIST, digits) or [−1, 1] (CIFAR-10).

    Args:
        name: "mnist", "cifar10", or "digits": scikit-learn's, which need no files, enlarged to 28 × 28.
        folder: the data folder; `$PACTUNE_DATA` or the user's cache by default.
        download: fetch missing files; False returns None if a file is missing.
        report: called with a line of text before a download.

    Raises:
        DataError: the files are missing and cannot be downloaded, or they are not the official ones.
    """
    if name == "digits":
        return _digits()
    archive, parse = (MNIST, _mnist) if name == "mnist" else (CIFAR10, _cifar10)
    home = data_home(folder)
    files = ensure_files(archive, home, report=report) if download else find_files(archive, home)
    return None if files is None else parse(files)


def parse_idx(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read an idx file of bytes.

    Raises:
        DataError: the file is damaged or of another type.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
        [7, 8, 9]
    """
    if content[:3] != b"\x00\x00\x08" or len(content) < 4:
        raise DataError("not an idx file of bytes: it must begin with 00 00 08")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(content[3])]
    if len(content) - start != int(np.prod(shape)):
        raise DataError(f"an idx file of shape {tuple(shape)} must hold {int(np.prod(shape))} bytes after its header")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def parse_cifar(content: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Read a batch of CIFAR-10's binary version: a label byte and 3072 pixel bytes per image.

    Raises:
        DataError: the file is damaged.
    """
    row = 1 + int(np.prod(_CIFAR_SHAPE))
    if not content or len(content) % row:
        raise DataError(f"a CIFAR-10 batch must hold {row} bytes per image, got {len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    return rows[:, 1:].reshape(-1, *_CIFAR_SHAPE), rows[:, 0]


def _mnist(files: dict[str, bytes]) -> Images:
    parts = {name: parse_idx(content) for name, content in files.items()}
    pool, held = (
        _pair(parts[f"{split}-images-idx3-ubyte"][:, None], parts[f"{split}-labels-idx1-ubyte"])
        for split in ("train", "t10k")
    )
    return Images("mnist", pool, held, (255.0, 0.0))


def _cifar10(files: dict[str, bytes]) -> Images:
    batches = [parse_cifar(files[name]) for name in files if name.startswith("data_batch")]
    pool = _pair(np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches]))
    return Images("cifar10", pool, _pair(*parse_cifar(files["test_batch.bin"])), (127.5, -1.0))


def _digits() -> Images:
    pixels, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = _pair(pixels[order].reshape(-1, 1, 8, 8).astype("float32"), labels[order])
    x = functional.interpolate(x, size=(28, 28), mode="bilinear", align_corners=False)
    cut = len(y) - _DIGITS_TEST
    return Images("digits", (x[:cut], y[:cut]), (x[cut:], y[cut:]), (16.0, 0.0))


def _pair(pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Pair:
    return torch.tensor(pixels, device="cpu"), torch.tensor(labels, dtype=torch.int64, device="cpu")
