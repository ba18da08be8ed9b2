"""`pactune select TABLE --target COLUMN`: choose the features of a table that predict a column."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pactune.cli.options import DelimiterOption, Task, parse_delimiter
from pactune.report.printing import FormatOption, OutputFormat, print_result
from pactune.storage.files import make_folder
from pactune.storage.user_paths import output_folder

if TYPE_CHECKING:
    import pandas as pd

    from pactune.cli.tables import InferredTask
    from pactune.report.page import Table
    from pactune.selection import ForwardSelector
    from pactune.selection.comparison import FeatureComparison

__all__ = ["select"]


class CriterionName(StrEnum):
    """The criterion that selection minimises."""

    EBIC = "ebic"
    PAC_BAYES = "pac-bayes"
    VALIDATION = "validation"
    AIC = "aic"


class Findings(NamedTuple):
    """Everything that the command prints: the task, the fitted selector, and its cross-validation if asked for."""

    task: InferredTask
    chosen: ForwardSelector
    comparison: FeatureComparison | None


def select(
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file.")],
    target: Annotated[str, typer.Option("--target", help="Column to predict.")],
    criterion: Annotated[CriterionName, typer.Option("--criterion", help="What to minimise.")] = CriterionName.EBIC,
    max_features: Annotated[
        int | None, typer.Option("--max-features", min=1, help="Longest path; by default ten steps past the minimum.")
    ] = None,
    beta: Annotated[
        str, typer.Option("--beta", help="pac-bayes: inverse temperature per training row, or 'auto'.")
    ] = "0.1",
    task: Annotated[
        Task, typer.Option("--task", help="By default, labels and few whole numbers are classes.")
    ] = Task.AUTO,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; may be repeated.")] = None,
    validation_fraction: Annotated[
        float, typer.Option("--validation-fraction", help="Share of the rows; ebic needs no split.")
    ] = 0.5,
    repeats: Annotated[
        int, typer.Option("--repeats", min=0, help="Repetitions of five-fold cross-validation; 0 leaves it out.")
    ] = 5,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the split into training and validation rows; ebic needs none.")
    ] = 0,
    delimiter: DelimiterOption = ",",
    output: Annotated[Path, typer.Option("--output", help="Folder for path.csv and path.png.")] = Path("runs/select"),
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Choose the features of a table that predict a column, and compare them with all features on new rows."""
    settings: dict[str, Any] = {
        "criterion": str(criterion),
        "max_features": max_features,
        "beta": _parse_beta(beta),
        "validation_fraction": _parse_fraction(validation_fraction),
        "random_state": seed,
    }
    mark = parse_delimiter(delimiter)
    typer.echo(f"select: reading {table}", err=True)
    output_folder(output)
    from pactune.cli.tables import InferredTask, infer_task, read_table, split_target
    from pactune.selection import ForwardSelector
    from pactune.selection.comparison import compare_with_all

    features, values = split_target(read_table(table, delimiter=mark), target, drop or [], task=str(task))
    taken = infer_task(values) if task is Task.AUTO else InferredTask(str(task), "--task says so")
    make_folder(output, "`--output`")
    typer.echo(f"select: {len(features)} rows, {features.shape[1]} features, target {target!r}", err=True)
    chosen = ForwardSelector(task=taken.name, **settings).fit(features, values)
    compared = compare_with_all(chosen, features, values, task=taken.name, repeats=repeats) if repeats else None
    found = Findings(taken, chosen, compared)
    _write(output, chosen)
    print_result(output_format, _as_json(found), _tables(found), [_note(found)])
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


def _write(folder: Path, chosen: ForwardSelector) -> None:
    from pactune.drawing import draw_panels
    from pactune.report.figure_files import save_figure
    from pactune.report.selection_path import path_panels
    from pactune.tracking.spreadsheets import write_csv

    table = chosen.path_.assign(selected=chosen.path_["step"].between(1, chosen.n_features_))
    write_csv(table, folder / "path.csv")
    save_figure(draw_panels(path_panels(chosen.criterion, chosen.path_, chosen.n_features_)), folder / "path.png")


def _as_json(found: Findings) -> dict[str, Any]:
    chosen, compared = found.chosen, found.comparison
    return {
        "task": found.task.name,
        "task_reason": found.task.reason,
        "criterion": chosen.criterion,
        "beta": getattr(chosen, "beta_", None),
        "selected": _names(chosen),
        "path": json.loads(chosen.path_.to_json(orient="records")),
        "cross_validation": compared
        and {
            **compared._asdict(),
            "chosen": compared.chosen._asdict(),
            "all_features": compared.all_features._asdict(),
        },
        "note": _note(found),
    }


def _tables(found: Findings) -> list[tuple[str, Table]]:
    tables = [("", _path_table(found.chosen))]
    if found.comparison is not None:
        tables.append(("New rows, by cross-validation", _comparison_table(found.comparison)))
    return tables


def _path_table(chosen: ForwardSelector) -> Table:
    from pactune.report.page import Table

    rows = []
    for row in _shown(chosen).to_dict("records"):
        values = (f"{row[name]:.4f}" for name in ("objective", "risk", "regularizer", "validation_r2"))
        mark = "selected" if 1 <= row["step"] <= chosen.n_features_ else ""
        rows.append([str(row["step"]), str(row["feature"] or "(none)"), *values, mark])
    return Table(("step", "feature", "objective", "risk", "regularizer", "validation R²", ""), rows)


def _comparison_table(compared: FeatureComparison) -> Table:
    from pactune.report.page import Table

    rows = []
    for words, found in (("chosen features", compared.chosen), ("all features", compared.all_features)):
        span = f"{min(found.per_repeat):.3f} to {max(found.per_repeat):.3f}"
        rows.append([words, f"{found.features:.1f}", f"{found.score:.3f}", span])
    return Table(("model", "features per fold", compared.metric, "over repetitions"), rows)


def _shown(chosen: ForwardSelector) -> pd.DataFrame:
    """Return the rows up to the chosen size and the next three, where the criterion rises again."""
    path: pd.DataFrame = chosen.path_
    return path.head(chosen.n_features_ + 4)


def _names(selector: ForwardSelector) -> list[str]:
    return [str(selector.feature_names_in_[feature]) for feature in selector.order_]


def _note(found: Findings) -> str:
    """Return sentences about the task, the chosen features, and how well they predict new rows."""
    chosen = found.chosen
    size, names = chosen.n_features_, ", ".join(_names(chosen))
    text = f"{found.task.name.capitalize()}, because {found.task.reason}. "
    text += f"{chosen.criterion} chose {size} feature{'' if size == 1 else 's'}" + (f": {names}." if size else ".")
    if size == chosen.max_features and size < chosen.n_features_in_:
        text += f" It still fell at the last step: raise --max-features (now {size}) to look further."
    return text if found.comparison is None else f"{text} {_comparison_note(found.comparison)}"


def _comparison_note(compared: FeatureComparison) -> str:
    everything = compared.all_features
    return (
        f"On new rows {compared.model} has {compared.metric} {compared.chosen.score:.3f} with chosen features and "
        f"{everything.score:.3f} with all {everything.features:.0f} (mean of {len(everything.per_repeat)} repetitions "
        f"of {compared.folds}-fold cross-validation, features chosen anew in each fold)."
    )
