"""The page of a sweep: every cell beside plain training, curves, and the cells that failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pactune import __version__
from pactune.columns import RISK, column_title, metric_names
from pactune.drawing import Line, Panel
from pactune.report.page import Section, Table, write_page
from pactune.tracking.status import succeeded

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SweepTables", "mean_lines", "number_text", "shown_columns", "write_sweep_page"]

SEED = "seed"  # the key over which means are taken
MOST_LINES = 12  # in a figure


class SweepTables(NamedTuple):
    """A sweep as tables.

    Attributes:
        keys: the keys of the grid.
        cells: a row per cell.
        history: a row per cell and outer step.
        plain: a row per cell and outer step of plain training.
        notes: warnings by the name of their cell.
    """

    keys: list[str]
    cells: pd.DataFrame
    history: pd.DataFrame
    plain: pd.DataFrame
    notes: dict[str, list[str]]


def write_sweep_page(found: SweepTables, path: Path) -> Path:
    """Write the page of a sweep."""
    sections = [_overview(found)]
    if SEED in found.keys:
        words = [f"Mean over {SEED}s, with one standard error where there are at least two."]
        sections.append(Section(f"Over {SEED}s", words, [_means(found)]))
    figures = [_figure(found, column) for column in _curve_columns(found.history) if column in found.history]
    if figures:
        words = ["Mean over seeds." if SEED in found.keys else "One line per cell.", *_left_out(found)]
        sections.append(Section("Along the run", words, figures=figures))
    failed = found.cells[found.cells["error"] != ""]
    if len(failed):
        rows = [[_name(row, found.keys), str(row["error"])] for row in failed.to_dict("records")]
        sections.append(
            Section("Failed", ["Start the sweep again to try these once more."], [Table(["cell", "error"], rows)])
        )
    if found.notes:
        rows = [[name, words] for name, said in found.notes.items() for words in said]
        sections.append(Section("Warnings", tables=[Table(["cell", "warning"], rows)]))
    return write_page(path, "pactune sweep", sections, f"pactune {__version__}")


def _curve_columns(history: pd.DataFrame) -> list[str]:
    metrics = [f"{data_set}_{name}" for name in metric_names(map(str, history)) for data_set in ("test", "valid")]
    return [*metrics, "valid_risk", "regularizer"]


def shown_columns(cells: pd.DataFrame) -> dict[str, str]:
    """Return the titles of the columns that a sweep's table shows, by column: the objective, risks and metrics."""
    numbers = [RISK, *metric_names(map(str, cells))]
    columns = ["objective", *(f"{data_set}_{name}" for data_set in ("valid", "test") for name in numbers)]
    return {name: column_title(name) for name in columns if name in cells and cells[name].notna().any()}


def number_text(value: Any) -> str:
    """Return a value of the table as text; a missing value is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def mean_lines(found: SweepTables) -> list[dict[str, Any]]:
    """Return a row per combination of the other keys: (mean, standard error, count) of every shown column over seeds.

    Only cells that are done count.
    """
    others = [key for key in found.keys if key != SEED]
    done = found.cells[found.cells["status"].map(succeeded)]
    lines = []
    for values, group in _groups(done, others):
        numbers = {name: _mean(group[name].dropna().tolist()) for name in shown_columns(found.cells)}
        lines.append({**values, **numbers})
    return lines


def _overview(found: SweepTables) -> Section:
    counts = found.cells["status"].value_counts().to_dict()
    words = [
        f"{len(found.cells)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items()) + ".",
        "The numbers are those of the outer step that was kept; “plain” is the last step of training without tuning.",
        "Nothing was chosen by the test set. Whoever chooses the cell with the best test number makes it too good.",
    ]
    shown = shown_columns(found.cells)
    plain = _plain_ends(found)
    header = [*found.keys, "status", "outer steps", *shown.values(), *(f"plain {column_title(name)}" for name in plain)]
    rows = [
        [
            *(str(row[key]) for key in found.keys),
            str(row["status"]),
            str(row["outer_steps"]),
            *(number_text(row[name]) for name in shown),
            *(number_text(ends.get(_values(row, found.keys))) for ends in plain.values()),
        ]
        for row in found.cells.to_dict("records")
    ]
    return Section("Cells", words, [Table(header, rows)])


def _plain_ends(found: SweepTables) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Return the last number of plain training, by column and by cell."""
    numbers = metric_names(map(str, found.plain)) or [RISK]
    columns = [f"{data_set}_{name}" for data_set in ("valid", "test") for name in numbers]
    names = [name for name in columns if name in found.plain]
    rows = found.plain.to_dict("records")
    return {name: {_values(row, found.keys): row[name] for row in rows} for name in names}


def _means(found: SweepTables) -> Table:
    others, shown = [key for key in found.keys if key != SEED], shown_columns(found.cells)
    rows = [
        [*(str(line[key]) for key in others), *(_mean_text(line[name]) for name in shown)] for line in mean_lines(found)
    ]
    return Table([*others, *shown.values()], rows)


def _mean(values: Sequence[float]) -> tuple[float, float, int]:
    count = len(values)
    mean = sum(values) / count if count else math.nan
    spread = sum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else math.nan
    return mean, math.sqrt(spread / count) if count > 1 else math.nan, count


def _mean_text(found: tuple[float, float, int]) -> str:
    mean, error, count = found
    if not count:
        return ""
    return f"{mean:.4g} ± {error:.2g} (n = {count})" if count > 1 else f"{mean:.4g}"


def _figure(found: SweepTables, column: str) -> Panel:
    others = [key for key in found.keys if key != SEED]
    lines = []
    for number, (values, group) in enumerate(_groups(found.history, others)[:MOST_LINES]):
        label = ", ".join(f"{key} = {value}" for key, value in values.items()) or "all seeds"
        lines.append(_curve(group, column, label, "solid", number))
        if not others and column in found.plain:
            lines.append(_curve(found.plain, column, "plain training", "dot", number + 4))
    title = column_title(column)
    return Panel(title, "outer step", title, lines)


def _curve(group: pd.DataFrame, column: str, label: str, dash: str, color: int) -> Line:
    means = group.groupby("outer_step")[column].mean()
    return Line(label, means.index.tolist(), means.tolist(), dash, color)


def _left_out(found: SweepTables) -> list[str]:
    count = len(_groups(found.history, [key for key in found.keys if key != SEED]))
    return [f"The first {MOST_LINES} of {count} are drawn."] if count > MOST_LINES else []


def _groups(frame: pd.DataFrame, keys: list[str]) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    if not keys:
        return [({}, frame)] if len(frame) else []
    groups = frame.groupby(keys, sort=False, dropna=False)
    return [(dict(zip(keys, values, strict=True)), group) for values, group in groups]


def _values(row: dict[Any, Any], keys: list[str]) -> tuple[Any, ...]:
    return tuple(row[key] for key in keys)


def _name(row: dict[Any, Any], keys: list[str]) -> str:
    return ", ".join(f"{key} = {row[key]}" for key in keys)
