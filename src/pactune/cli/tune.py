"""`pactune tune TABLE --target COLUMN --output DIR`: train a model of a column, and write it with a report."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pactune.cli.options import DelimiterOption, Task, parse_delimiter
from pactune.errors import DataError, RunFolderError, SettingError
from pactune.extras import is_installed
from pactune.report.printing import FormatOption, OutputFormat, print_result
from pactune.storage.user_paths import output_folder

if TYPE_CHECKING:
    from pactune.cli.table_model import TableModel
    from pactune.cli.training_table import TrainingTable
    from pactune.results.result import Result

__all__ = ["tune"]


class ModelName(StrEnum):
    """The kind of model."""

    LINEAR = "linear"
    MLP = "mlp"


def tune(
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file.")],
    target: Annotated[str, typer.Option("--target", help="Column to predict.")],
    output: Annotated[Path, typer.Option("--output", help="New or empty folder for the model and the report.")],
    metric: Annotated[
        str | None, typer.Option("--metric", help="Name of a scikit-learn scorer; by default accuracy or R².")
    ] = None,
    folds: Annotated[int, typer.Option("--folds", min=3, help="Folds that choose and judge.")] = 5,
    model: Annotated[
        ModelName, typer.Option("--model", help="Linear, or an MLP with one hidden layer.")
    ] = ModelName.LINEAR,
    task: Annotated[
        Task, typer.Option("--task", help="By default, labels and few whole numbers are classes.")
    ] = Task.AUTO,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; may be repeated.")] = None,
    delimiter: DelimiterOption = ",",
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of the first weights of an MLP.")] = 0,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Train a model that predicts a column of a table, and compare it with plain training on rows it did not see."""
    mark = parse_delimiter(delimiter)
    typer.echo(f"tune: reading {table}", err=True)
    _check_free(output)
    data = _read(table, mark, target, drop or [], str(task))
    for note in data.notes:
        typer.echo(f"tune: {note}", err=True)
    settings = {"metric": metric, "folds": folds, "random_state": seed}
    try:
        found, result = _fit(data, str(model), settings)
    except KeyboardInterrupt:
        typer.echo("pactune: interrupted before there was a model", err=True)
        raise typer.Exit(130) from None
    _write(output, found, result, [*data.notes, f"model: {model}"])
    document = _document(data, result, output)
    from pactune.report.comparison import comparison_table

    print_result(output_format, document, [("", comparison_table(result.comparison))], ["", result.verdict])
    typer.echo(f"tune: written to {output}", err=True)


def _read(path: Path, delimiter: str, target: str, drop: list[str], task: str) -> TrainingTable:
    from pactune.cli.tables import read_table
    from pactune.cli.training_table import prepare_table

    return prepare_table(read_table(path, delimiter=delimiter, as_text=True), target, drop, task)


def _check_free(folder: Path) -> None:
    """Raise unless a folder is new or empty, or if it cannot be made."""
    output_folder(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise SettingError(f"`--output` must be a new or empty folder, got {folder} with files in it")


def _fit(data: TrainingTable, model: str, settings: dict[str, Any]) -> tuple[TableModel, Result]:
    """Train the estimator on the encoded columns."""
    from pactune.cli.table_model import TableModel, make_mlp
    from pactune.cli.tables import TableError
    from pactune.sklearn import TunedClassifier, TunedRegressor

    classes = data.task.name == "classification"
    estimator = (TunedClassifier if classes else TunedRegressor)(
        make_mlp if model == "mlp" else None, standardize=False, progress=True, **settings
    )
    try:
        estimator.fit(data.encoding.encode(data.features), data.values.to_numpy())
    except DataError as error:
        raise TableError(str(error)) from error
    fields: dict[str, Any] = {"task": data.task.name, "target": str(data.values.name), "model": model}
    if classes:
        fields["classes"] = estimator.classes_.tolist()
    else:
        fields |= {"target_mean": estimator.target_mean_, "target_scale": estimator.target_scale_}
    return TableModel(**fields, encoding=data.encoding), estimator.result_


def _write(folder: Path, found: TableModel, result: Result, notes: list[str]) -> None:
    from pactune import __version__
    from pactune.cli.tables import TableError
    from pactune.report.comparison import comparison_table
    from pactune.report.page import Section, write_page
    from pactune.results.plots import history_panels

    result = replace(result, settings={**result.settings, "notes": notes})  # `pactune report` shows them again
    panels = history_panels(result) if is_installed("matplotlib") else []  # the model matters more than its figures
    section = Section(
        "Comparison on held-out rows", [*notes, result.verdict], [comparison_table(result.comparison)], panels
    )
    try:
        found.save(folder, result)
        write_page(folder / "report.html", f"pactune tune: {found.target}", [section], f"pactune {__version__}")
    except RunFolderError as error:
        raise TableError(f"`--output` cannot be written: {error}") from error


def _document(data: TrainingTable, result: Result, folder: Path) -> dict[str, Any]:
    return {
        "task": data.task.name,
        "task_reason": data.task.reason,
        "rows": len(data.features),
        "columns": data.encoding.names,
        "notes": data.notes,
        "table": json.loads(result.table.to_json(orient="records")),
        "verdict": result.verdict,
        "pays": result.pays,
        "output": str(folder),
    }
