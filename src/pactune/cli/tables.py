"""Reading a table from a file, and refusing columns and targets that cannot be used."""

from __future__ import annotations

import io
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pactune.cli.commas import MISTAKES, comma_mistake
from pactune.errors import DataError, SettingError
from pactune.extras import require
from pactune.storage.user_paths import input_file

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "InferredTask",
    "TableError",
    "check_columns",
    "check_commas",
    "check_rows",
    "check_sizes",
    "check_target",
    "columns_text",
    "drop_columns",
    "infer_task",
    "read_table",
    "split_target",
]

_MIN_ROWS = 10
_NAMED = 5
MARKS = (";", "\t", "|", ",")  # characters that stand between values
# Whole numbers are classes if they have at most so many different values, and so many rows per value on average.
_MOST_CLASSES = 20
_ROWS_PER_CLASS = 5
# The square of a larger number may overflow.
_HUGE = 1e100


class TableError(DataError, SettingError):
    """The table or a column that the user named cannot be used; commands end with exit status 2."""


class InferredTask(NamedTuple):
    """A task, `"regression"` or `"classification"`, and the reason for it in words."""

    name: str
    reason: str


def read_table(path: Path, *, delimiter: str = ",", as_text: bool = False) -> pd.DataFrame:
    """Read a CSV or Parquet file.

    Args:
        path: the file.
        delimiter: the character between two values of a CSV file.
        as_text: keep the values of a CSV file as they are written.

    Raises:
        TableError: the file cannot be read, or the header of a CSV file has a name twice, or fewer names than its rows
            have values.
    """
    import pandas as pd

    parquet = input_file(path, "a table", (".csv", ".parquet")).suffix.lower() == ".parquet"
    if parquet:
        require("pyarrow")
    try:
        if parquet:
            return pd.read_parquet(path)
        table = _read_csv(path, sep=delimiter, dtype=str if as_text else None)
    except (ValueError, OSError) as error:  # parser and decoding errors of pandas and pyarrow are both kinds
        hint = "" if parquet else _delimiter_hint(_first_line(path), delimiter)
        raise TableError(f"cannot read {path.name}: {' '.join(str(error).split())}{hint}") from error
    _check_header(path, delimiter)
    return table


def _read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV file. In a file with one column, a blank line between others is a row with a missing value."""
    import pandas as pd

    table: pd.DataFrame = pd.read_csv(path, **options)
    if table.shape[1] == 1:
        lines = path.read_bytes().strip(b"\r\n")
        table = pd.read_csv(io.BytesIO(lines), skip_blank_lines=False, **options)
    return table


def _check_header(path: Path, delimiter: str) -> None:
    """Raise if the header of a CSV file has a name twice, or fewer names than the first row has values.

    pandas would give the second of two equal names a number. Of rows with more values than names it would take the
    first values as an index, and move the others under the names before theirs.
    """
    import pandas as pd

    try:
        head = pd.read_csv(path, sep=delimiter, header=None, nrows=2, dtype=str, na_filter=False)
    except pd.errors.ParserError as error:
        hint = _delimiter_hint(_first_line(path), delimiter)
        remedy = hint or "; give every column a name, or remove the delimiter at the end of the rows"
        raise TableError(f"the rows of {path.name} have more values than its header has names{remedy}") from error
    names = pd.Index(head.iloc[0])
    _check_repeated(names[names != ""])


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(10_000).rstrip("\r\n")
    except OSError:
        return ""


def _delimiter_hint(header: str, delimiter: str) -> str:
    r"""Return words about another delimiter, if the names of the columns are joined by it.

    >>> _delimiter_hint("a;b;y", ",")
    "; its names are joined by ';': use --delimiter ';'"
    >>> _delimiter_hint("a\tb\ty", ",")
    '; its names are joined by tabs: use --delimiter tab'
    """
    mark = max(MARKS, key=header.count)
    if (delimiter and delimiter in header) or mark not in header:
        return ""
    words = "tabs: use --delimiter tab" if mark == "\t" else f"{mark!r}: use --delimiter {mark!r}"
    return f"; its names are joined by {words}"


def infer_task(values: pd.Series[Any]) -> InferredTask:
    """Return the task that fits a target: classification for labels, two values, or few whole numbers."""
    from pandas.api.types import is_bool_dtype

    name, found = values.name, values.dropna()
    different = found.nunique()
    if is_bool_dtype(values) or not _is_number(values):
        return InferredTask("classification", f"{name!r} holds labels, not numbers")
    if different == 2:
        return InferredTask("classification", f"{name!r} has two different values")
    few = different <= min(_MOST_CLASSES, len(found) // _ROWS_PER_CLASS)
    if few and _is_finite(found) and (found == found.round()).all():
        return InferredTask("classification", f"{name!r} has only {different} different values, all whole numbers")
    return InferredTask("regression", f"{name!r} holds numbers with {different} different values")


def split_target(
    table: pd.DataFrame, target: str, drop: list[str], *, task: str = "auto"
) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Separate the target from the other columns, and check all of them.

    Args:
        table: the table.
        target: name of the column to predict.
        drop: names of the columns to leave out.
        task: `"regression"`, `"classification"`, or `"auto"` for the one that `infer_task` finds.

    Returns:
        The features and the target.

    Raises:
        TableError: there are fewer than ten rows; or a column is missing or exists twice, holds missing or infinite
            values, text or dates, or is constant. The message names the column and the remedy.
    """
    table = table.rename(columns=str)
    check_columns(table, [target, *drop])
    features = drop_columns(table, target, drop)
    check_rows(len(table), len(table))
    values = table[target]
    check_target(values, task)
    _check_features(features)
    # A text file that pandas reads in pieces can give a column of labels both strings and numbers.
    return features.astype(float), values if _is_number(values) else values.astype(str)


def check_columns(table: pd.DataFrame, names: list[str]) -> None:
    """Raise unless a table has columns of these names, and no name twice.

    Raises:
        TableError: a column is missing or exists twice. The message has the name that was probably meant.
    """
    _check_repeated(table.columns)
    missing = [name for name in names if name not in table.columns]
    if missing:
        many = "s" if len(missing) > 1 else ""
        raise TableError(f"no column{many} named {_listed(missing)}{_meant(missing, list(map(str, table.columns)))}")


def _check_repeated(names: pd.Index[Any]) -> None:
    repeated = names[names.duplicated()].unique().tolist()
    if repeated:
        raise TableError(f"more than one {columns_text(repeated)}; rename them")


def check_rows(known: int, rows: int) -> None:
    """Raise if a table has too few rows with a target.

    Raises:
        TableError: there are fewer than ten.
    """
    if known < _MIN_ROWS:
        of = f" with a target out of {rows}" if known < rows else ""
        raise TableError(f"a table must have at least {_MIN_ROWS} rows to train and validate on, got {known}{of}")


def drop_columns(table: pd.DataFrame, target: str, drop: list[str]) -> pd.DataFrame:
    """Return the columns besides the target and those to leave out.

    Raises:
        TableError: the target is among those to leave out, or no column is left.
    """
    if target in drop:
        raise TableError(f"the target {target!r} cannot be dropped")
    features = table.drop(columns=[target, *drop])
    if features.shape[1] == 0:
        raise TableError(f"no column is left besides the target {target!r}")
    return features


def _meant(names: list[str], known: list[str]) -> str:
    """Return the rest of a message about unknown names: a delimiter in a single name, close known names, or all."""
    if len(known) == 1 and any(mark in known[0] for mark in MARKS):
        return f"; the table has one column {known[0][:60]!r}{_delimiter_hint(known[0], '')}"
    lower = {other.strip().lower(): other for other in known}
    close = [match for name in names for match in get_close_matches(name.strip().lower(), lower, n=1)]
    if close:
        return f"; did you mean {_listed([lower[match] for match in dict.fromkeys(close)])}?"
    return f"; the table has {_listed(known)}"


def check_target(values: pd.Series[Any], task: str) -> None:
    """Raise unless a column can be the target of a task.

    Raises:
        TableError: values are missing, infinite, all the same, numbers with commas, labels in a regression, or too many
            different classes.
    """
    name = values.name
    if values.isna().any():
        raise TableError(f"target {name!r} has {int(values.isna().sum())} missing values; remove these rows")
    if values.nunique() < 2:
        raise TableError(f"target {name!r} is constant ({values.iloc[0]!r}); there is nothing to predict")
    if task != "classification" and not _is_number(values):
        check_commas(values.to_frame(), [name])
    if task == "regression" and not _is_number(values):
        raise TableError(f"target {name!r} must hold numbers for regression, got labels; use --task classification")
    if _is_number(values) and not _is_finite(values):
        raise TableError(f"target {name!r} has infinite values, or some beyond {_HUGE:g}; remove these rows")
    classes = (infer_task(values).name if task == "auto" else task) == "classification"
    if classes and values.nunique() > len(values) // 2:
        raise TableError(
            f"target {name!r} has {values.nunique()} different values in {len(values)} rows, too many for classes; "
            "encode it as numbers and use --task regression"
        )


def _check_features(features: pd.DataFrame) -> None:
    missing = [name for name in features if features[name].isna().any()]
    if missing:
        raise TableError(f"missing values in {columns_text(missing)}; fill them, remove the rows, or use --drop")
    text = [name for name in features if not _is_number(features[name])]
    check_commas(features, text)
    if text:
        raise TableError(f"text or dates in {columns_text(text)}; encode as numbers or use --drop")
    check_sizes(dict(features.items()))
    constant = [name for name in features if features[name].nunique() < 2]
    if constant:
        raise TableError(f"nothing varies in {columns_text(constant)}; use --drop")


def check_sizes(numbers: dict[Any, pd.Series[Any]]) -> None:
    """Raise if columns of numbers hold infinite or very large values; values may be missing.

    Raises:
        TableError: a column has such values. The message names all of these columns.
    """
    infinite = [name for name in numbers if not _is_finite(numbers[name].dropna())]
    if infinite:
        raise TableError(
            f"infinite values in {columns_text(infinite)}, or some beyond {_HUGE:g}; remove the rows or use --drop"
        )


def check_commas(table: pd.DataFrame, texts: list[Any]) -> None:
    """Raise if columns of texts hold numbers with commas.

    Raises:
        TableError: at least half of the texts of a column are such numbers.
    """
    found = {name: comma_mistake(table[name].dropna().astype(str)) for name in texts}
    for mistake, message in MISTAKES.items():
        if names := [name for name in texts if found[name] == mistake]:
            raise TableError(message.format(columns_text(names)))


def _is_number(values: pd.Series[Any]) -> bool:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    return bool(is_bool_dtype(values) or (is_numeric_dtype(values) and not is_complex_dtype(values)))


def _is_finite(values: pd.Series[Any]) -> bool:
    import numpy as np

    return bool((np.abs(values.astype(float)) < _HUGE).all())


def columns_text(names: list[Any]) -> str:
    """Return names of columns in words; of many, the first five."""
    return f"column{'' if len(names) == 1 else 's'} {_listed(names)}"


def _listed(names: list[Any]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more
