"""The names of a history's columns. All code that needs a list of them, or their order or titles, takes it from here.

A row has three kinds of columns: the outer step; numbers of the outer loop, such as `objective`; and numbers of a data
set, which begin with its name, such as `valid_risk` and `test_accuracy`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "CLOCK_COLUMNS",
    "COLUMNS",
    "DIVERGENCE_COLUMNS",
    "JOURNAL_COLUMNS",
    "PREFIXES",
    "RISK",
    "TUNED_COLUMNS",
    "Row",
    "column_names",
    "column_title",
    "judged_column",
    "metric_names",
]

Row = dict[str, Any]  # of a history, a journal or a table: values by the names of columns

TUNED_COLUMNS = ("risk", "regularizer", "objective", "hypergradient_norm", "seconds")  # plain training has none of them
COLUMNS = frozenset(["outer_step", "weight_norm", *TUNED_COLUMNS])
DIVERGENCE_COLUMNS = ("weight_norm", "train_risk")  # NaN or infinite after training diverged
JOURNAL_COLUMNS = ("kind", "time")  # the journal adds them to a row
CLOCK_COLUMNS = ("time", "seconds")  # they differ from run to run

_DATA_SETS = {"train": "training", "valid": "validation", "test": "test"}
PREFIXES = tuple(f"{name}_" for name in _DATA_SETS)  # of the risk and the metrics of each data set
RISK = "risk"  # behind a prefix; no metric may have this name


def column_names(rows: Iterable[Row]) -> list[str]:
    """Return the names of all columns in the order of the fullest row, since some outer steps are not evaluated.

    >>> column_names([{"outer_step": 1, "seconds": 0.1}, {"outer_step": 2, "valid_risk": 0.5, "seconds": 0.2}])
    ['outer_step', 'valid_risk', 'seconds']
    """
    kinds = dict.fromkeys(tuple(row) for row in rows)
    return list(dict.fromkeys(name for names in sorted(kinds, key=len, reverse=True) for name in names))


def metric_names(columns: Iterable[str]) -> list[str]:
    """Return the names of the metrics among some columns, in the order of the columns.

    Only `valid_` and `test_` are looked at, since `train_gradient_norm` is no metric.

    >>> metric_names(["outer_step", "valid_risk", "valid_top_5", "test_risk", "test_top_5"])
    ['top_5']
    """
    found = [name.partition("_")[2] for name in columns if name.startswith(("valid_", "test_"))]
    return [name for name in dict.fromkeys(found) if name != RISK]


def judged_column(columns: Iterable[str]) -> str | None:
    """Return the column that judges a run: the test set's first metric, else its risk; None without a test set.

    >>> judged_column(["valid_risk", "test_risk", "test_accuracy"]), judged_column(["valid_risk", "test_risk"])
    ('test_accuracy', 'test_risk')
    """
    present = [name for name in columns if name.startswith("test_")]
    return next((f"test_{name}" for name in metric_names(present)), "test_risk" if "test_risk" in present else None)


def column_title(name: str) -> str:
    """Return a column's name in words.

    >>> column_title("valid_risk"), column_title("test_top_5"), column_title("objective")
    ('validation risk', 'test top 5', 'objective')
    """
    data_set, _, rest = name.partition("_")
    title = f"{_DATA_SETS[data_set]} {rest}" if data_set in _DATA_SETS and rest else name
    return title.replace("_", " ")
