"""The sections of a grid or a sweep: means over seeds, curves, every cell, and the cells that failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pactune import __version__
from pactune.columns import PREFIXES, RISK, column_title, is_share, metric_names, value_text
from pactune.drawing import GREY, Line, Panel
from pactune.report.cells import SweepTables
from pactune.report.page import Section, Table, write_page
from pactune.tracking.status import succeeded

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["cell_text", "mean_lines", "shown_columns", "sweep_sections", "write_sweep_page"]

SEED = "seed"  # the key over which means are taken
MOST_LINES = 12  # in a figure
DECADES = 100  # the axis is logarithmic if the largest regularizer is this many times the least one
KEPT = "The numbers are those of the outer step that was kept; “plain” is the last step of training without tuning."
TEST = "Nothing was chosen by the test set. Whoever chooses the cell with the best test number makes it too good."
BAND = "± one standard error over seeds"


def write_sweep_page(found: SweepTables, path: Path) -> Path:
    """Write the page of a sweep."""
    name = path.resolve().parent.name
    return write_page(path, f"pactune sweep: {name}", sweep_sections(found, name), f"pactune {__version__}")


def sweep_sections(found: SweepTables, name: str) -> list[Section]:
    """Return the sections of a grid or a sweep; their headings begin with its name."""
    start = f"{name}: "
    counts = found.cells["status"].value_counts().to_dict()
    words = [f"{len(found.cells)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items()) + "."]
    sections = []
    if SEED in found.keys and (means := _means(found)).rows:
        about = [f"Mean over seeds ± one standard error, of n cells. {KEPT}", TEST]
        sections.append(Section(f"{start}means over seeds", [*words, *about], [means]))
        words = []
    figures = [_figure(found, column) for column in _curve_columns(found.history) if column in found.history]
    if figures:
        seeds = f"A line is the mean over seeds. Its band is {BAND}, as in the table."
        lines = seeds if SEED in found.keys else "One line per cell."
        sections.append(Section(f"{start}along the run", [*words, lines, *_left_out(found)], figures=figures))
        words = []
    about = [KEPT, TEST] if len(sections) < 2 else []
    sections.append(Section(f"{start}all cells", [*words, *about], [_cells(found)]))
    return [*sections, *_problems(found, start)]


def _problems(found: SweepTables, start: str) -> list[Section]:
    """Return the sections of errors and warnings."""
    sections = []
    failed = found.cells[found.cells["error"] != ""]
    if len(failed):
        rows = [[_name(row, found.keys), str(row["error"])] for row in failed.to_dict("records")]
        words = ["Start the sweep again to try these once more."]
        sections.append(Section(f"{start}failed", words, [Table(["cell", "error"], rows)]))
    if found.notes:
        rows = [[name, words] for name, said in found.notes.items() for words in said]
        sections.append(Section(f"{start}warnings", tables=[Table(["cell", "warning"], rows)]))
    return sections


def _curve_columns(history: pd.DataFrame) -> list[str]:
    metrics = [f"{data_set}_{name}" for name in metric_names(map(str, history)) for data_set in ("test", "valid")]
    return [*metrics, "valid_risk", "regularizer"]


def shown_columns(cells: pd.DataFrame) -> dict[str, str]:
    """Return the titles of the columns that a table of cells shows, by column: metrics, risks and the objective."""
    numbers = [*metric_names(map(str, cells)), RISK]
    columns = [*(f"{data_set}_{name}" for name in numbers for data_set in ("test", "valid")), "objective"]
    return {name: column_title(name) for name in columns if name in cells and cells[name].notna().any()}


def cell_text(name: str, value: Any) -> str:
    """Return a value of the table as text, shares in percent; a missing value is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value_text(name, value) if isinstance(value, float) else str(value)


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


def _cells(found: SweepTables) -> Table:
    shown = shown_columns(found.cells)
    plain = _plain_ends(found)
    header = [*found.keys, "status", "outer steps", *shown.values(), *(f"plain {column_title(name)}" for name in plain)]
    rows = [
        [
            *(str(row[key]) for key in found.keys),
            str(row["status"]),
            str(row["outer_steps"]),
            *(cell_text(name, row[name]) for name in shown),
            *(cell_text(name, ends.get(_values(row, found.keys))) for name, ends in plain.items()),
        ]
        for row in found.cells.to_dict("records")
    ]
    return Table(header, rows)


def _plain_ends(found: SweepTables) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Return the last number of plain training, by column and by cell."""
    numbers = metric_names(map(str, found.plain)) or [RISK]
    columns = [f"{data_set}_{name}" for name in numbers for data_set in ("test", "valid")]
    names = [name for name in columns if name in found.plain]
    rows = found.plain.to_dict("records")
    return {name: {_values(row, found.keys): row[name] for row in rows} for name in names}


def _means(found: SweepTables) -> Table:
    others, shown = [key for key in found.keys if key != SEED], shown_columns(found.cells)
    lines = mean_lines(found)
    counts = [str(max(line[name][2] for name in shown)) for line in lines]
    rows = [
        [*(str(line[key]) for key in others), count, *(_mean_text(name, line[name]) for name in shown)]
        for line, count in zip(lines, counts, strict=True)
    ]
    return Table([*others, "n", *shown.values()], rows)


def _mean(values: Sequence[float]) -> tuple[float, float, int]:
    count = len(values)
    mean = sum(values) / count if count else math.nan
    spread = sum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else math.nan
    return mean, math.sqrt(spread / count) if count > 1 else math.nan, count


def _mean_text(name: str, found: tuple[float, float, int]) -> str:
    mean, error, count = found
    if count < 2:
        return value_text(name, mean) if count else ""
    percent = name.startswith(PREFIXES) and is_share(name.partition("_")[2])
    return f"{100 * mean:.1f} ± {100 * error:.1f} %" if percent else f"{mean:.4g} ± {error:.2g}"


def _figure(found: SweepTables, column: str) -> Panel:
    """Return a line per combination of the other keys, with plain training dashed beside it."""
    others = [key for key in found.keys if key != SEED]
    groups = _groups(found.history, others)[:MOST_LINES]
    lines = [_curve(group, column, _label(values), "solid", i) for i, (values, group) in enumerate(groups)]
    marks = [
        (x, y, "kept step")
        for line, (values, _) in zip(lines, groups, strict=True)
        for x, y in zip(line.x, line.y, strict=True)
        if x == _kept_step(found, values)
    ]
    title, percent = column_title(column), is_share(column.partition("_")[2])
    unit = f"{title} (%)" if percent else f"{title} (mean loss per row)" if column.endswith(f"_{RISK}") else title
    unit = "√Y (norm of gradients)" if column == "regularizer" else unit
    lines += _plain_curves(found, column, others)
    band = BAND if any(line.band for line in lines) else ""
    shown = [line for line in lines if line.x]
    values = [y for line in shown for y in (*line.y, *(line.band or ((), ()))[0])]
    wide = column == "regularizer" and min(values, default=0) > 0 and max(values) > DECADES * min(values)
    return Panel(title, "outer step", unit, shown, marks, log_y=wide, band_title=band)


def _plain_curves(found: SweepTables, column: str, others: list[str]) -> list[Line]:
    """Return plain training: one line if it does not depend on the other keys, one per combination if these are few."""
    if column not in found.plain:
        return []
    groups = _groups(found.plain, others)
    lines = [_curve(group, column, f"plain, {_label(v)}", "dash", i) for i, (v, group) in enumerate(groups)]
    if len({tuple(line.y) for line in lines}) == 1:
        return [lines[0]._replace(label="plain training", color=GREY)]
    return lines if len(lines) <= 3 else []


def _kept_step(found: SweepTables, values: dict[str, Any]) -> int | None:
    """Return the outer step that all cells of a combination keep; None if they differ."""
    own = [cells for known, cells in _groups(found.cells, list(values)) if known == values]
    steps = {int(step) for cells in own for step in cells["kept_step"].dropna()} if own else set()
    return steps.pop() if len(steps) == 1 else None


def _label(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items()) or "tuned"


def _curve(group: pd.DataFrame, column: str, label: str, dash: str, color: int) -> Line:
    """Return the mean over seeds against the outer step, with one standard error where there are at least two."""
    factor = 100 if is_share(column.partition("_")[2]) else 1
    by_step = (factor * group.set_index("outer_step")[column]).dropna().groupby("outer_step")
    means, errors = by_step.mean(), by_step.sem()
    steps, center = [int(step) for step in means.index], means.tolist()
    if not len(errors) or errors.isna().any():
        return Line(label, steps, center, dash, color)
    return Line(label, steps, center, dash, color, ((means - errors).tolist(), (means + errors).tolist()))


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
