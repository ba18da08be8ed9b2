"""A table that is ready to train on: its target, its columns, and sentences about what was done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pactune.cli.encoding import Encoding, as_numbers, as_texts, fit_encoding
from pactune.cli.table_model import probability_column
from pactune.cli.tables import (
    InferredTask,
    TableError,
    check_columns,
    check_commas,
    check_rows,
    check_sizes,
    check_target,
    columns_text,
    drop_columns,
    infer_task,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TrainingTable", "missing_text", "prepare_table"]

# A column of texts is left out if it has more different texts than this, and than one per so many rows.
_MOST_TEXTS, _ROWS_PER_TEXT = 20, 10


class TrainingTable(NamedTuple):
    """A table to train on.

    Attributes:
        features: the columns besides the target, of the rows that have a target.
        values: the target, numbers or texts.
        task: the task and the reason for it.
        encoding: how the columns become inputs.
        notes: sentences about the task, the columns, and missing values.
    """

    features: pd.DataFrame
    values: pd.Series[Any]
    task: InferredTask
    encoding: Encoding
    notes: list[str]


def prepare_table(table: pd.DataFrame, target: str, drop: list[str], task: str) -> TrainingTable:
    """Separate the target, choose the columns to use, and fit their preprocessing.

    Raises:
        TableError: the table, the target or a column cannot be used. The message names it and the remedy.
    """
    table = table.rename(columns=str)
    check_columns(table, [target, *drop])
    features, notes = drop_columns(table, target, drop), list[str]()
    known = table[target].notna()
    if not known.any() and len(table):
        raise TableError(f"target {target!r} has no value in any of {len(table)} rows")
    check_rows(int(known.sum()), len(table))
    features, values = features[known], _typed(table[target][known])
    check_target(values, task)
    taken = infer_task(values) if task == "auto" else InferredTask(task, "--task says so")
    notes.append(f"{taken.name}, because {taken.reason}")
    if taken.name == "classification":
        values = _spelled(values, as_texts(table[target][known]))
        _check_name(target, values)
    if not known.all():
        notes.append(f"{_rows(int((~known).sum()))} without a value of {target!r} left out")
    numbers, categories = _usable(features, notes)
    encoding = fit_encoding(features, numbers, categories)
    notes += missing_text(features, encoding)
    return TrainingTable(features, values, taken, encoding, notes)


def missing_text(table: pd.DataFrame, encoding: Encoding) -> list[str]:
    """Return a sentence about missing values and what they were filled with; none if nothing is missing."""
    fills: list[tuple[str, str]] = [(column.name, f"median {column.median:.6g}") for column in encoding.numbers]
    fills += [(column.name, f"most frequent {column.fill!r}") for column in encoding.categories]
    counts = {name: int(table[name].isna().sum()) for name, _ in fills}
    parts = [f"{counts[name]} in {name!r} ({how})" for name, how in fills if counts[name]]
    return [f"{sum(counts.values())} missing values imputed: {', '.join(parts)}"] if parts else []


def _typed(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a target as numbers if all its values are numbers, and as texts otherwise."""
    numbers = as_numbers(values)
    return as_texts(values) if numbers is None else numbers


def _spelled(values: pd.Series[Any], texts: pd.Series[Any]) -> pd.Series[Any]:
    """Return labels as texts if the file spells them in another way than numbers are printed, such as 01 or 1.50.

    Labels of which one number has several spellings, such as 1 and 1.0, stay numbers.
    """
    same = (as_texts(values) == texts.str.strip()).all()
    return values if same or texts.nunique() > values.nunique() else texts


def _check_name(target: str, values: pd.Series[Any]) -> None:
    """Raise if the predictions would have two columns of one name."""
    for label in values.unique():
        if target == probability_column(label):
            raise TableError(
                f"target {target!r} has the name that the probability of class {label} gets in predictions; rename it"
            )


def _usable(features: pd.DataFrame, notes: list[str]) -> tuple[list[str], list[str]]:
    """Return the names of the columns of numbers and of texts. A note says which columns are left out, and why."""
    empty = [name for name in features if not features[name].notna().any()]
    if empty:
        raise TableError(f"no value in {columns_text(empty)}; use --drop")
    columns = list(map(str, features))
    constant = [name for name in columns if features[name].nunique() < 2]
    read = {name: as_numbers(features[name]) for name in columns if name not in constant}
    numbers = {name: values for name, values in read.items() if values is not None}
    texts = [name for name in read if name not in numbers]
    check_commas(features, texts)
    check_sizes(numbers)
    many = max(_MOST_TEXTS, len(features) // _ROWS_PER_TEXT)
    long = [name for name in texts if features[name].nunique() > many]
    if constant:
        notes.append(f"{columns_text(constant)} left out: nothing varies in it")
    if long:
        notes.append(f"{columns_text(long)} left out: text with more than {many} different values")
    categories = [name for name in texts if name not in long]
    if not numbers and not categories:
        raise TableError("no column is left to predict by: all are constant, or texts with too many different values")
    notes.append(f"{_rows(len(features))}, {len(numbers)} columns of numbers, {len(categories)} of texts")
    return list(numbers), categories


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
