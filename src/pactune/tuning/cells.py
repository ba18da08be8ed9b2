"""The cells of a grid: reading a grid, the names that its keys must not take, and the folder name of every cell.

A cell is one combination of a grid's values. `fit_grid` accepts any values. `pt.sweep` sends cells to other machines
and writes them to journals, so it accepts scalars only.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from pactune.checks import shown
from pactune.columns import COLUMNS, PREFIXES
from pactune.errors import SettingError
from pactune.tracking.journal import JOURNAL

__all__ = [
    "SWEEP_COLUMNS",
    "Cell",
    "Scalar",
    "cell_name",
    "check_key",
    "find_cells",
    "grid_cells",
    "parse_cell_name",
    "scalar_cells",
    "scalar_grid",
    "unique_cell_name",
]

Cell = dict[str, Any]  # values by the keys of the grid
Scalar = str | int | float | bool | None

# The columns of a sweep's tables besides those of a history.
SWEEP_COLUMNS = frozenset(
    ["outer_steps", "status", "kept_run", "kept_step", "kept_zeta", "verdict", "error", "folder", "cell"]
)
LONGEST_NAME = 120  # characters of a folder name before its checksum


# Keys


def check_key(key: object, *, reserved: Collection[str] = ()) -> str:
    """Return a key of a grid. It must be a valid argument name and must not be the name of a history column.

    Args:
        key: the key.
        reserved: further names that the key must not take: metrics, columns of other tables.

    Raises:
        SettingError: the key breaks one of these rules.
    """
    if not isinstance(key, str) or not key.isidentifier():
        raise SettingError(f"a key of `grid` must be the name of an argument of `build`, got {shown(key)}")
    if key in COLUMNS or key in reserved or key.startswith(PREFIXES):
        names = ", ".join(sorted({*COLUMNS, *reserved}))
        raise SettingError(
            f"a key of `grid` must not be {key!r}, which is a column of the history; rename the argument of `build`. "
            f"Taken are {names}, and all names that begin with {', '.join(PREFIXES)}"
        )
    return key


# Grids of any values


def grid_cells(grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return the cells of a grid, which is a dict of lists or a list of cells.

    Raises:
        SettingError: the grid is neither, has no cell, has a cell twice, or has a key that `check_key` refuses.

    >>> grid_cells({"zeta": [0, 1], "seed": [7]})
    [{'zeta': 0, 'seed': 7}, {'zeta': 1, 'seed': 7}]
    """
    cells = _listed_cells(grid)
    if not cells:
        raise SettingError("`grid` has no cell: every name needs at least one value")
    for key in {key: None for cell in cells for key in cell}:
        check_key(key)
    names = [cell_name(cell) for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingError(f"`grid` has the cell {twice!r} twice")
    return cells


def _listed_cells(grid: object) -> list[Cell]:
    if isinstance(grid, Mapping):
        wrong = [name for name, values in grid.items() if isinstance(values, str) or not isinstance(values, Sequence)]
        if wrong:
            raise SettingError(f"`grid` must give a list of values for every name; {wrong[0]!r} has none")
        return _product(grid)
    if isinstance(grid, Sequence) and all(isinstance(cell, Mapping) for cell in grid):
        return [dict(cell) for cell in grid]
    raise SettingError(f"`grid` must be a dict of lists or a list of dicts, got {type(grid).__name__}")


def _product(lists: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """Return every combination of the values; the last key changes fastest."""
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


# Grids of scalars


def scalar_cells(grid: object) -> list[Cell]:
    """Return every combination of a grid's values; the last key changes fastest.

    Raises:
        SettingError: as `scalar_grid`.

    >>> scalar_cells({"zeta": [0.0, 0.1], "seed": [1]})
    [{'zeta': 0.0, 'seed': 1}, {'zeta': 0.1, 'seed': 1}]
    """
    return _product(scalar_grid(grid))


def scalar_grid(grid: object) -> dict[str, list[Scalar]]:
    """Return the grid with NumPy arrays and numbers converted to lists and Python numbers.

    Raises:
        SettingError: the grid is no dict or is empty, `check_key` refuses a key, or the values of a key are no list,
            are none, are not all scalars, or hold one scalar twice.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise SettingError(f'`grid` must map at least one name to a list, such as {{"seed": [0, 1]}}, got {grid!r}')
    return {check_key(key, reserved=SWEEP_COLUMNS): _scalars(key, values) for key, values in grid.items()}


def _scalars(key: object, values: object) -> list[Scalar]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, (list, tuple, range)) or len(listed) == 0:
        raise SettingError(f"`grid[{key!r}]` must be a list of at least one value, got {values!r}")
    found = [_scalar(key, value) for value in listed]
    if len({json.dumps(value) for value in found}) < len(found):
        raise SettingError(f"`grid[{key!r}]` must not hold a value twice, got {found!r}")
    return found


def _scalar(key: object, value: object) -> Scalar:
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


# Names of folders


def cell_name(cell: Mapping[str, Any]) -> str:
    """Return the folder name of a cell of `fit_grid`.

    Characters that a folder name must not have become "_". Two cells may then have the same name; `grid_cells` refuses
    a grid in which that happens.

    >>> cell_name({"zeta": 1e-6, "seed": 0})
    'zeta=1e-06,seed=0'
    """
    text = ",".join(f"{name}={value}" for name, value in cell.items())
    return "".join(letter if letter.isalnum() or letter in "=,.+-_" else "_" for letter in text)


def unique_cell_name(cell: Mapping[str, Scalar]) -> str:
    """Return the folder name of a cell of `pt.sweep`; two cells never have the same name.

    The name gets a checksum where it would be too long or would have characters that a folder name must not have, and
    where a text looks like another scalar, such as "1" and 1.

    >>> unique_cell_name({"zeta": 1e-6, "model": "linear"})
    'zeta=1e-06,model=linear'
    >>> unique_cell_name({"model": "a/b"})
    'model=a_b-ae9ba08f'
    """
    text = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in cell.items())
    safe = re.sub(r"[^\w.,=+-]", "_", text)[:LONGEST_NAME]
    if safe == text and not any(map(_is_ambiguous, cell.values())):
        return text
    checksum = hashlib.blake2b(json.dumps(cell).encode(), digest_size=4)
    return f"{safe}-{checksum.hexdigest()}"


def _is_ambiguous(value: Scalar) -> bool:
    """Return True if the value is a text that reads as another scalar, or as several keys of a name."""
    if not isinstance(value, str):
        return False
    try:
        json.loads(value)
    except ValueError:
        return value == "" or "," in value or "=" in value
    return True


def parse_cell_name(name: str) -> Cell:
    """Return the cell that `cell_name` gave this name.

    >>> parse_cell_name("zeta=auto,draw=0")
    {'zeta': 'auto', 'draw': 0}
    """
    parts = [part.partition("=") for part in name.split(",")]
    return {key: _parse_value(text) for key, sign, text in parts if sign}


def _parse_value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # a folder may have any name
        return text


def find_cells(folder: Path, cells: Sequence[Cell]) -> list[tuple[Cell, Path]]:
    """Return those of `cells` that have a journal under `folder`, each with its run folder."""
    present = [path.parent for path in folder.glob(f"*/{JOURNAL}")]
    by_cell = [(parse_cell_name(path.name), path) for path in sorted(present)]
    return [(cell, path) for cell in cells for found, path in by_cell if found == cell]
