"""A grid as a list of cells, each with a name that is also the name of its folder."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from pactune.columns import check_key
from pactune.errors import SettingError

__all__ = ["Cell", "Value", "cells_of", "lists_of"]

Value = str | int | float | bool | None

# The columns of a sweep's tables besides those of the histories.
TAKEN = frozenset(
    [
        "outer_steps",
        "status",
        "kept_run",
        "kept_step",
        "kept_zeta",
        "verdict",
        "error",
        "folder",
        "cell",
    ]
)
LONGEST = 120  # characters of a folder's name


@dataclass(frozen=True)
class Cell:
    """One combination of the grid's values."""

    values: dict[str, Value]

    @property
    def name(self) -> str:
        """`zeta=1e-06,seed=0`; where that cannot name a folder, what can of it and a checksum.

        >>> Cell({"zeta": 1e-6, "model": "linear"}).name
        'zeta=1e-06,model=linear'
        >>> Cell({"model": "a/b"}).name
        'model=a_b-ae9ba08f'
        """
        plain = ",".join(f"{key}={_words(value)}" for key, value in self.values.items())
        safe = re.sub(r"[^\w.,=+-]", "_", plain)[:LONGEST]
        if safe == plain and not any(map(_looks_like_another, self.values.values())):
            return plain
        digest = hashlib.blake2b(json.dumps(self.values).encode(), digest_size=4)
        return f"{safe}-{digest.hexdigest()}"


def cells_of(grid: object) -> list[Cell]:
    """Return every combination of the grid's values, the last key running fastest.

    Example:
        >>> [cell.name for cell in cells_of({"zeta": [0.0, 0.1], "seed": [1]})]
        ['zeta=0.0,seed=1', 'zeta=0.1,seed=1']
    """
    lists = lists_of(grid)
    return [Cell(dict(zip(lists, combination, strict=True))) for combination in itertools.product(*lists.values())]


def lists_of(grid: object) -> dict[str, list[Value]]:
    """Return the grid with plain values.

    Raises:
        SettingError: no keys, a key that is no name or taken, or values that are no list, none, twice or no scalars.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise SettingError(f'`grid` must map at least one name to a list, such as {{"seed": [0, 1]}}, got {grid!r}')
    return {check_key(key, taken=TAKEN): _values(key, values) for key, values in grid.items()}


def _values(key: object, values: object) -> list[Value]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, (list, tuple, range)) or len(listed) == 0:
        raise SettingError(f"`grid[{key!r}]` must be a list of at least one value, got {values!r}")
    found = [_value(key, value) for value in listed]
    if len({json.dumps(value) for value in found}) < len(found):
        raise SettingError(f"`grid[{key!r}]` must not hold a value twice, got {found!r}")
    return found


def _value(key: object, value: object) -> Value:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise SettingError(
        f"`grid[{key!r}]` must hold finite numbers, texts, truth values or None, got {value!r}; "
        "name what is more than that by a text, and let `build` look it up"
    )


def _words(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _looks_like_another(value: Any) -> bool:
    """Tell whether a text would name the same folder as a value that is no text, such as "1" and 1."""
    if not isinstance(value, str):
        return False
    try:
        json.loads(value)
    except ValueError:
        return value == "" or "," in value or "=" in value
    return True
