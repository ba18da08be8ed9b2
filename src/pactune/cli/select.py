"""`pactune select TABLE --target COLUMN`: choose the features of a table that predict a column."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pactune.errors import SettingError
from pactune.report.printing import FormatOption, OutputFormat, print_result

if TYPE_CHECKING:
    import pandas as pd

    from pactune.report.page import Table
    from pactune.selection import ForwardSelector

__all__ = ["select"]


class CriterionName(StrEnum):
    """The criterion that selection minimises."""

    PAC_BAYES = "pac-bayes"
    VALIDATION = "validation"
    AIC = "aic"
    EBIC = "ebic"


class Task(StrEnum):
    """The kind of target."""

    AUTO = "auto"
    REGRESSION = "regression"
    CLASSIFICATION = "classification"


def select(
    table: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="CSV or Parquet file.")],
    target: Annotated[str, typer.Option("--target", help="Column to predict.")],
    criterion: Annotated[
        CriterionName, typer.Option("--criterion", help="What to minimise.")
    ] = CriterionName.PAC_BAYES,
    max_features: Annotated[int, typer.Option("--max-features", min=1, help="Longest path to look at.")] = 20,
    beta: Annotated[str, typer.Option("--beta", help="Inverse temperature per training row, or 'auto'.")] = "0.1",
    task: Annotated[Task, typer.Option("--task", help="Regression, or classes for the target.")] = Task.AUTO,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; may be repeated.")] = None,
    validation_fraction: Annotated[float, typer.Option("--validation-fraction", help="Share of the rows.")] = 0.5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the split into training and validation rows.")] = 0,
    output: Annotated[Path, typer.Option("--output", help="Folder for path.csv and path.png.")] = Path("runs/select"),
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Choose the features of a table that predict a column, and stop where the risk on new rows stops falling."""
    settings: dict[str, Any] = {
        "max_features": max_features,
        "beta": _parse_beta(beta),
        "task": str(task),
        "validation_fraction": _parse_fraction(validation_fraction),
        "random_state": seed,
    }
    from pactune.cli.tables import read_table, split_target
    from pactune.selection import ForwardSelector

    features, values = split_target(read_table(table), target, drop or [], classes=task is Task.CLASSIFICATION)
    typer.echo(f"select: {len(features)} rows, {features.shape[1]} features, target {target!r}", err=True)
    chosen = ForwardSelector(criterion=str(criterion), **settings).fit(features, values)
    plain = ForwardSelector(criterion="validation", **settings).fit(features, values)
    _write(output, chosen, plain)
    print_result(output_format, _as_json(chosen, plain), [("", _table(chosen))], [_note(chosen, plain)])
    typer.echo(f"select: written to {output}", err=True)


def _parse_beta(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise typer.BadParameter(f"must be a positive number or 'auto', got {text!r}", param_hint="--beta")
    return value


def _parse_fraction(value: float) -> float:
    if not 0.0 < value < 1.0:
        raise typer.BadParameter(f"must be between 0 and 1, got {value:g}", param_hint="--validation-fraction")
    return value


def _write(folder: Path, chosen: ForwardSelector, plain: ForwardSelector) -> None:
    from pactune.drawing import draw_panels
    from pactune.report.figure_files import save_figure
    from pactune.report.selection_path import path_panels
    from pactune.tracking.spreadsheets import write_csv

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"`--output` must be a folder that can be written, got {folder}: {error.strerror}"
        ) from error
    table = chosen.path_.assign(selected=chosen.path_["step"].between(1, chosen.n_features_))
    write_csv(table, folder / "path.csv")
    panels = path_panels(chosen.criterion, chosen.path_, plain.path_, chosen.n_features_)
    save_figure(draw_panels(panels), folder / "path.png")


def _as_json(chosen: ForwardSelector, plain: ForwardSelector) -> dict[str, Any]:
    return {
        "criterion": chosen.criterion,
        "beta": getattr(chosen, "beta_", None),
        "selected": _names(chosen),
        "validation_r2": _r2(chosen),
        "path": json.loads(chosen.path_.to_json(orient="records")),
        "validation_alone": {"selected": _names(plain), "validation_r2": _r2(plain)},
        "note": _note(chosen, plain),
    }


def _table(chosen: ForwardSelector) -> Table:
    from pactune.report.page import Table

    rows = []
    for row in _shown(chosen).to_dict("records"):
        values = (f"{row[name]:.4f}" for name in ("objective", "risk", "regularizer", "validation_r2"))
        mark = "selected" if 1 <= row["step"] <= chosen.n_features_ else ""
        rows.append([str(row["step"]), str(row["feature"] or "(none)"), *values, mark])
    return Table(("step", "feature", "objective", "risk", "regularizer", "validation R²", ""), rows)


def _shown(chosen: ForwardSelector) -> pd.DataFrame:
    """Return the rows up to the chosen size and the next three, where the criterion rises again."""
    path: pd.DataFrame = chosen.path_
    return path.head(chosen.n_features_ + 4)


def _names(selector: ForwardSelector) -> list[str]:
    return [str(selector.feature_names_in_[feature]) for feature in selector.order_]


def _r2(selector: ForwardSelector) -> float | None:
    value = float(selector.path_["validation_r2"][selector.n_features_])
    return None if value != value else value


def _note(chosen: ForwardSelector, plain: ForwardSelector) -> str:
    """Return sentences about the chosen features, and about the choice by the validation score alone."""
    size, names = chosen.n_features_, ", ".join(_names(chosen))
    text = f"{chosen.criterion} chose {size} feature{'' if size == 1 else 's'}" + (f": {names}." if size else ".")
    if size == chosen.path_["step"].iloc[-1] and size < chosen.n_features_in_:
        text += f" It still fell at the last step: raise --max-features (now {chosen.max_features}) to look further."
    if chosen.criterion == "validation":
        return f"{text} A score that was used to choose is not an estimate of the score on new rows."
    extra = len(set(_names(plain)) - set(_names(chosen)))
    return (
        f"{text} The validation score alone would have gone on to {plain.n_features_} features ({extra} others), to a "
        f"validation R² of {_r2_text(_r2(plain))} instead of {_r2_text(_r2(chosen))}. The rows that give this score "
        "also chose the features, so part or all of the difference is chance."
    )


def _r2_text(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
