"""A history's rows, and the names of their columns.

All code that needs a list of the names, or their order or titles, takes it from here.

A row has three kinds of columns: the outer step; numbers of the outer loop, such as `objective`; and numbers of a data
set, which begin with its name, such as `valid_risk` and `test_accuracy`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

__all__ = [
    "CLOCK_COLUMNS",
    "COLUMNS",
    "DIVERGENCE_COLUMNS",
    "JOURNAL_COLUMNS",
    "PREFIXES",
    "RISK",
    "TUNED_COLUMNS",
    "History",
    "Row",
    "column_names",
    "column_title",
    "is_share",
    "judged_column",
    "metric_names",
    "value_text",
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


def is_share(name: str) -> bool:
    """Return True for a metric that is a share of the rows, which is shown in percent.

    >>> is_share("accuracy"), is_share("balanced accuracy"), is_share("r2")
    (True, True, False)
    """
    return name.replace("_", " ") in ("accuracy", "balanced accuracy")


def value_text(name: str, value: float | None) -> str:
    """Return the value of a column with its unit; empty for a missing one.

    >>> value_text("test_accuracy", 0.7512), value_text("valid_risk", 0.7512), value_text("test_r2", None)
    ('75.1 %', '0.7512', '')
    """
    if value is None:
        return ""
    metric = name.partition("_")[2] if name.startswith(PREFIXES) else name
    return f"{100 * value:.1f} %" if is_share(metric) else f"{value:.4g}"


class History(Sequence[Row]):
    """The rows of a run, which hold numbers only. They are kept as arrays, since a long run has very many rows.

    >>> history = History([{"outer_step": 1, "risk": 0.5}])
    >>> history.append({"outer_step": 2, "risk": 0.25, "valid_risk": 1.0})
    >>> history[-1], len(history), history[:1] == [{"outer_step": 1, "risk": 0.5}]
    ({'outer_step': 2, 'risk': 0.25, 'valid_risk': 1.0}, 2, True)
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._kinds: dict[tuple[tuple[str, type], ...], int] = {}  # names and types of the columns of a row
        self._tables: list[array[float]] = []  # the numbers of all rows of a kind
        self._places = array("q")  # the kind of every row, and its place among the rows of its kind
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add a row."""
        kind = tuple((name, int if isinstance(value, int) else float) for name, value in row.items())
        number = self._kinds.setdefault(kind, len(self._kinds))
        if number == len(self._tables):
            self._tables.append(array("d"))
        table = self._tables[number]
        self._places.extend((number, len(table)))
        table.extend(row.values())

    def __len__(self) -> int:
        return len(self._places) // 2

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            kinds = list(self._kinds)
            return [self._row(i, kinds) for i in range(*index.indices(len(self)))]
        return self._row(range(len(self))[index], list(self._kinds))

    def __iter__(self) -> Iterator[Row]:
        kinds = list(self._kinds)
        return (self._row(i, kinds) for i in range(len(self)))

    def __add__(self, other: Sequence[Row]) -> list[Row]:
        return [*self, *other]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (History, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _row(self, index: int, kinds: list[tuple[tuple[str, type], ...]]) -> Row:
        number, start = self._places[2 * index], self._places[2 * index + 1]
        kind = kinds[number]
        numbers = self._tables[number][start : start + len(kind)]
        return {name: convert(value) for (name, convert), value in zip(kind, numbers, strict=True)}
