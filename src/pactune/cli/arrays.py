"""Reading a training and a validation sample from an .npz file, and refusing arrays that a classifier cannot use."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = ["read_samples"]

NAMES = ("x_train", "y_train", "x_valid", "y_valid")


def read_samples(path: Path) -> list[tuple[Tensor, Tensor]]:
    """Read the training and the validation sample as (inputs in rows, labels).

    Raises:
        DataError: the file is not an archive of numbers, an array is missing or empty, a value is not finite, a label
            is not a whole number ≥ 0, or shapes do not fit. The message names the array.
    """
    import torch

    held = _load(path)
    for part in ("train", "valid"):
        _check_pair(f"x_{part}", held[f"x_{part}"], f"y_{part}", held[f"y_{part}"])
    columns = [held[name].reshape(len(held[name]), -1).shape[1] for name in ("x_train", "x_valid")]
    if columns[0] != columns[1]:
        raise DataError(f"x_train and x_valid must have the same columns, got {columns[0]} and {columns[1]}")
    return [
        (
            torch.as_tensor(held[f"x_{part}"], dtype=torch.float32, device="cpu").flatten(1),
            torch.as_tensor(held[f"y_{part}"].astype("int64"), device="cpu"),
        )
        for part in ("train", "valid")
    ]


def _load(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    try:
        with np.load(path) as archive:
            missing = [name for name in NAMES if name not in archive]
            if not missing:
                return {name: archive[name] for name in NAMES}
    except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read {path.name}: it must be an .npz file of plain numbers: {error}") from error
    raise DataError(f"{path.name} must hold {', '.join(NAMES)}; it lacks {', '.join(missing)}")


def _check_pair(x_name: str, x: np.ndarray[Any, Any], y_name: str, y: np.ndarray[Any, Any]) -> None:
    import numpy as np

    for name, values in ((x_name, x), (y_name, y)):
        if values.dtype.kind not in "biuf":
            raise DataError(f"{name} must hold real numbers, got {values.dtype}")
        if values.size == 0:
            raise DataError(f"{name} is empty")
        if not np.isfinite(values).all():
            raise DataError(f"{name} must hold finite numbers; it has NaN or infinity")
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"{x_name} must have a row, and {y_name} a label, for each example in the same number of rows, "
            f"got {x.shape} and {y.shape}"
        )
    if (y < 0).any() or (y != y.astype("int64")).any():
        raise DataError(f"{y_name} must hold labels 0, 1, 2, …, got {y[(y < 0) | (y != y.astype('int64'))][0]}")
