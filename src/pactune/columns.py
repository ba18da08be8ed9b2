"""The names of a history's columns, in one place, so that nothing else takes one of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pactune.checks import shown
from pactune.errors import SettingError

__all__ = ["COLUMNS", "PREFIXES", "RISK", "Row", "check_key"]

Row = dict[str, Any]  # of a history, a journal or a table: values by the names of columns

COLUMNS = frozenset(["outer_step", "weight_norm", "risk", "regularizer", "objective", "hypergradient_norm", "seconds"])
PREFIXES = ("train_", "valid_", "test_")  # of the risk and the metrics of each data set
RISK = "risk"  # behind a prefix; no metric may have this name


def check_key(key: object, *, taken: Collection[str] = ()) -> str:
    """Return a key of a grid; raise unless it can be an argument of `build` and a column beside those of a history.

    Args:
        key: the key.
        taken: names that are taken besides the columns: metrics, columns of other tables.
    """
    if not isinstance(key, str) or not key.isidentifier():
        raise SettingError(f"a key of `grid` must be the name of an argument of `build`, got {shown(key)}")
    if key in COLUMNS or key in taken or key.startswith(PREFIXES):
        names = ", ".join(sorted({*COLUMNS, *taken}))
        raise SettingError(
            f"a key of `grid` must not be {key!r}, which is a column of the history; rename the argument of `build`. "
            f"Taken are {names}, and all names that begin with {', '.join(PREFIXES)}"
        )
    return key
