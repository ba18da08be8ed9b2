"""The names of a history's columns, in one place, so that nothing else takes one of them."""

from __future__ import annotations

from typing import Any

__all__ = ["COLUMNS", "PREFIXES", "RISK", "Row"]

Row = dict[str, Any]  # of a history, a journal or a table: values by the names of columns

COLUMNS = frozenset(["outer_step", "weight_norm", "risk", "regularizer", "objective", "hypergradient_norm", "seconds"])
PREFIXES = ("train_", "valid_", "test_")  # of the risk and the metrics of each data set
RISK = "risk"  # behind a prefix; no metric may have this name
