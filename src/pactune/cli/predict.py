"""`pactune predict DIR TABLE`: predict the rows of a table with a model that `pactune tune` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pactune.cli.options import DelimiterOption, parse_delimiter
from pactune.errors import RunFolderError
from pactune.storage.files import make_folder
from pactune.storage.user_paths import input_folder, output_file

if TYPE_CHECKING:
    import pandas as pd

    from pactune.cli.table_model import TableModel

__all__ = ["predict"]


def predict(
    folder: Annotated[Path, typer.Argument(help="Folder that `pactune tune` wrote.")],
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with the columns of the training table.")],
    output: Annotated[Path | None, typer.Option("--output", help="CSV file; by default stdout.")] = None,
    delimiter: DelimiterOption = ",",
) -> None:
    """Predict a column for new rows: the label or the number and, for classes, the probability of each."""
    mark = parse_delimiter(delimiter)
    typer.echo(f"predict: reading {folder}", err=True)
    from pactune.cli.table_model import load_table_model
    from pactune.cli.tables import TableError, read_table
    from pactune.tracking.spreadsheets import write_csv

    input_folder(folder)
    if output is not None:
        output_file(output)
    model, module = load_table_model(folder)
    rows = read_table(table, delimiter=mark, as_text=True).rename(columns=str)
    _check(rows, model, table.name)
    for note in _notes(rows, model):
        typer.echo(f"predict: {note}", err=True)
    if output is not None:
        make_folder(output.absolute().parent, "the folder of `--output`")
    found = model.predict(module, rows)
    if output is None:
        typer.echo(found.to_csv(index=False), nl=False)
        return
    try:
        write_csv(found, output)
    except RunFolderError as error:
        raise TableError(f"`--output` cannot be written: {error}") from error
    typer.echo(f"predict: {len(found)} rows written to {output}", err=True)


def _check(rows: pd.DataFrame, model: TableModel, name: str) -> None:
    """Raise unless a table has rows and all columns of the model."""
    from pactune.cli.tables import TableError, check_columns

    if rows.empty:
        raise TableError(f"{name} has no rows")
    check_columns(rows, model.encoding.names)


def _notes(rows: pd.DataFrame, model: TableModel) -> list[str]:
    """Return sentences about columns that are not used, missing values, and texts that training did not see."""
    from pactune.cli.tables import columns_text
    from pactune.cli.training_table import missing_text

    notes = []
    others = [name for name in rows.columns if name not in model.encoding.names]
    if others:
        notes.append(f"{columns_text(others)} not used")
    notes += missing_text(rows, model.encoding)
    for name, count in model.encoding.unseen(rows).items():
        notes.append(f"{count} values of {name!r} were not seen in training and count as none of its values")
    return notes
