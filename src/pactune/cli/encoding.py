"""Columns of a table as inputs of a model: fitted with scikit-learn, kept as plain numbers and texts.

A column of numbers is filled with its median and standardized. A column of texts is filled with its most frequent text
and becomes one column per text. A text that was not seen in training is 0 in all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pactune.cli.tables import TableError, columns_text
from pactune.storage.schema import Check, finite, listed, record, text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CHECKS", "CategoryColumn", "Encoding", "NumberColumn", "as_numbers", "column_pipeline", "fit_encoding"]

_HUGE = 1e100  # the square of a larger number may overflow


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: the input is (number − mean)/scale, with the median for a missing number."""

    name: str
    median: float
    mean: float
    scale: float


@dataclass(frozen=True)
class CategoryColumn:
    """A column of texts: an input per value, 1 where the column has this value; `fill` is that of a missing one."""

    name: str
    fill: str
    values: list[str]


CHECKS: dict[str, Check] = {
    "numbers": listed(record({"name": text, "median": finite, "mean": finite, "scale": finite})),
    "categories": listed(record({"name": text, "fill": text, "values": listed(text)})),
}


@dataclass(frozen=True)
class Encoding:
    """All columns of a table, the numbers first."""

    numbers: list[NumberColumn]
    categories: list[CategoryColumn]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.numbers] + [column.name for column in self.categories]

    @property
    def inputs(self) -> int:
        """The number of inputs of the model."""
        return len(self.numbers) + sum(len(column.values) for column in self.categories)

    def encode(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """Return the inputs of every row. Shape (rows, inputs).

        Raises:
            TableError: a column of numbers holds texts, infinite or very large numbers.
        """
        parts = [_standardized(table[column.name], column) for column in self.numbers]
        for column in self.categories:
            found = as_texts(table[column.name]).fillna(column.fill).to_numpy(dtype=object)
            parts += [(found == value).astype(float) for value in column.values]
        return np.stack(parts, axis=1) if parts else np.zeros((len(table), 0))

    def unseen(self, table: pd.DataFrame) -> dict[str, int]:
        """Return how many values of each column of texts were not seen in training, if any."""
        found = {}
        for column in self.categories:
            values = as_texts(table[column.name]).dropna()
            found[column.name] = int((~values.isin(column.values)).sum())
        return {name: count for name, count in found.items() if count}

    def document(self) -> dict[str, Any]:
        """Return the columns as JSON can hold them."""
        return {name: [asdict(column) for column in getattr(self, name)] for name in CHECKS}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Encoding:
        """Return the columns of a document that `CHECKS` accept."""
        numbers = [NumberColumn(**_only(one, NumberColumn)) for one in document["numbers"]]
        return cls(numbers, [CategoryColumn(**_only(one, CategoryColumn)) for one in document["categories"]])


def fit_encoding(table: pd.DataFrame, numbers: list[str], categories: list[str]) -> Encoding:
    """Fit the preprocessing of scikit-learn to a table, and return what it found."""
    fitted = column_pipeline(numbers, categories).fit(prepared(table, numbers, categories))
    found: tuple[list[NumberColumn], list[CategoryColumn]] = ([], [])
    if numbers:
        impute, scale = (step for _, step in fitted.named_transformers_["numbers"].steps)
        rows = zip(numbers, impute.statistics_, scale.mean_, scale.scale_, strict=True)
        found[0].extend(NumberColumn(name, *map(float, values)) for name, *values in rows)
    if categories:
        impute, encode = (step for _, step in fitted.named_transformers_["categories"].steps)
        texts = zip(categories, impute.statistics_, encode.categories_, strict=True)
        found[1].extend(CategoryColumn(name, str(fill), list(map(str, values))) for name, fill, values in texts)
    return Encoding(*found)


def column_pipeline(numbers: list[str], categories: list[str]) -> Any:
    """Return scikit-learn's preprocessing of a table, not yet fitted."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    encoded = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    return ColumnTransformer([("numbers", scaled, numbers), ("categories", encoded, categories)])


def prepared(table: pd.DataFrame, numbers: list[str], categories: list[str]) -> pd.DataFrame:
    """Return a table whose columns are floats or texts, with NaN for what is missing, as scikit-learn takes it."""
    import pandas as pd

    columns: dict[str, Any] = {name: _floats(table[name]) for name in numbers}
    columns |= {name: as_texts(table[name]) for name in categories}
    return pd.DataFrame(columns)


def as_numbers(values: pd.Series[Any]) -> pd.Series[Any] | None:
    """Return a column as numbers, with NaN for what is missing; None if a value is no number."""
    import pandas as pd
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    if is_bool_dtype(values) or is_complex_dtype(values):
        return None
    if is_numeric_dtype(values):
        return values
    found = pd.to_numeric(values.astype(object), errors="coerce")
    return found if (found.isna() == values.isna()).all() and is_numeric_dtype(found) else None


def as_texts(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column as texts, with NaN for what is missing."""
    return values.astype(object).map(str, na_action="ignore").where(values.notna(), np.nan)


def _standardized(values: pd.Series[Any], column: NumberColumn) -> NDArray[np.float64]:
    found = (_floats(values).fillna(column.median).to_numpy() - column.mean) / column.scale
    return found.astype(np.float64)


def _floats(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of numbers as floats.

    Raises:
        TableError: a value is no number, or too large.
    """
    numbers = as_numbers(values)
    if numbers is None:
        wrong = next(value for value in values.dropna() if not _is_float(value))
        raise TableError(f"column {str(values.name)!r} must hold numbers, got {str(wrong)[:40]!r}")
    found = numbers.astype(float)
    if (found.abs() > _HUGE).any():
        raise TableError(
            f"infinite values in {columns_text([values.name])}, or some beyond {_HUGE:g}; remove these rows"
        )
    return found


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (bool, np.bool_))


def _only(document: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {name: document[name] for name in kind.__dataclass_fields__}
