"""Reading a table from a file, and refusing columns that a linear model cannot use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune.errors import DataError
from pactune.extras import require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_table", "split_target"]

_MIN_ROWS = 10
_NAMED = 5


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file."""
    import pandas as pd

    suffix = path.suffix.lower()
    if suffix not in {".csv", ".parquet"}:
        raise DataError(f"a table must be a .csv or .parquet file, got {path.name}")
    if suffix == ".parquet":
        require("pyarrow")
    try:
        return pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    except (ValueError, OSError) as error:  # parser and decoding errors of pandas and pyarrow are both kinds
        raise DataError(f"cannot read {path.name}: {error}") from error


def split_target(
    table: pd.DataFrame, target: str, drop: list[str], *, classes: bool = False
) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Separate the target from the other columns, and check all of them.

    Args:
        table: the table.
        target: name of the column to predict.
        drop: names of the columns to leave out.
        classes: the target holds classes, which may have any type.

    Returns:
        The features and the target.

    Raises:
        DataError: there are fewer than ten rows; or a column is missing or exists twice, holds missing or infinite
            values, text or dates, or is constant. The message names the column and the remedy.
    """
    table = table.rename(columns=str)
    repeated = table.columns[table.columns.duplicated()].unique().tolist()
    if repeated:
        raise DataError(f"more than one {_columns(repeated)}; rename them")
    for name in (target, *drop):
        if name not in table.columns:
            raise DataError(f"no column named {name!r}; the table has {_listed(list(table.columns))}")
    if target in drop:
        raise DataError(f"the target {target!r} cannot be dropped")
    if len(table) < _MIN_ROWS:
        raise DataError(f"a table must have at least {_MIN_ROWS} rows to train and validate on, got {len(table)}")
    features, values = table.drop(columns=[target, *drop]), table[target]
    if features.shape[1] == 0:
        raise DataError(f"no column is left besides the target {target!r}")
    _check_target(values, classes=classes)
    _check_features(features)
    return features.astype(float), values


def _check_target(values: pd.Series[Any], *, classes: bool) -> None:
    name = values.name
    if values.isna().any():
        raise DataError(f"target {name!r} has {int(values.isna().sum())} missing values; remove these rows")
    if values.nunique() < 2:
        raise DataError(f"target {name!r} is constant ({values.iloc[0]!r}); there is nothing to predict")
    if not classes and _is_number(values):
        if not _is_finite(values):
            raise DataError(f"target {name!r} has infinite values; remove these rows")
    elif values.nunique() > len(values) // 2:
        raise DataError(
            f"target {name!r} is not a column of numbers, and {values.nunique()} different values in {len(values)} "
            "rows are too many for classes; encode it as numbers"
        )


def _check_features(features: pd.DataFrame) -> None:
    missing = [name for name in features if features[name].isna().any()]
    if missing:
        raise DataError(f"missing values in {_columns(missing)}; fill them, remove the rows, or use --drop")
    text = [name for name in features if not _is_number(features[name])]
    if text:
        raise DataError(f"text or dates in {_columns(text)}; encode as numbers or use --drop")
    infinite = [name for name in features if not _is_finite(features[name])]
    if infinite:
        raise DataError(f"infinite values in {_columns(infinite)}; remove the rows or use --drop")
    constant = [name for name in features if features[name].nunique() < 2]
    if constant:
        raise DataError(f"nothing varies in {_columns(constant)}; use --drop")


def _is_number(values: pd.Series[Any]) -> bool:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    return bool(is_bool_dtype(values) or (is_numeric_dtype(values) and not is_complex_dtype(values)))


def _is_finite(values: pd.Series[Any]) -> bool:
    import numpy as np

    return bool(np.isfinite(values.astype(float)).all())


def _columns(names: list[Any]) -> str:
    return f"column{'' if len(names) == 1 else 's'} {_listed(names)}"


def _listed(names: list[Any]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more
