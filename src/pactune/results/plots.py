"""The plot of a run: `history_panels` gathers its curves, `draw_history` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pactune.columns import RISK, Row, column_names, is_share, metric_names
from pactune.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Line, Panel, draw_panels, history_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RunCurves", "comparison_panel", "draw_history", "history_panels"]

PARTS = {"train": ("training", GREY), "valid": ("validation", BLUE), "test": ("test", ORANGE)}
STEP = "outer step"


class RunCurves(Protocol):
    """The parts of a `Result` that its plot shows."""

    @property
    def rows(self) -> Sequence[Row]: ...  # noqa: D102
    @property
    def plain_rows(self) -> Sequence[Row]: ...  # noqa: D102
    @property
    def kept_run(self) -> str: ...  # noqa: D102
    @property
    def kept_step(self) -> int: ...  # noqa: D102
    @property
    def zeta(self) -> float: ...  # noqa: D102
    @property
    def comparison(self) -> Sequence[Row]: ...  # noqa: D102


def draw_history(run: RunCurves) -> Figure:
    """Draw `history_panels` side by side."""
    return draw_panels(history_panels(run))


def history_panels(run: RunCurves) -> list[Panel]:
    """Return the curves of a run: risks, metrics, the objective and its parts, and gradients.

    Each panel marks the kept step. After `pt.tune` the first panel compares its procedures.
    """
    metrics = metric_names(column_names([*run.rows, *run.plain_rows]))
    panels = [
        *([comparison_panel(run.comparison)] if run.comparison else []),
        *(_panel(run, name) for name in [*metrics, RISK]),
        _objective_panel(run),
        _gradient_panel(run),
    ]
    return [panel for panel in panels if panel.lines]


def comparison_panel(rows: Sequence[Row]) -> Panel:
    """Return the procedures that `pt.tune` compared, in the user's metric on held-out rows."""
    metric = list(rows[0])[1]
    factor = 100 if is_share(metric) else 1
    lines, marks = [], []
    for place, row in enumerate(rows):
        value, error = factor * row[metric], factor * row["standard_error"]
        band = ([value - error], [value + error])
        lines.append(Line("", [place], [value], color=(GREY, GREEN, BLUE)[place % 3], band=band, mode="markers"))
        marks += [(place, value, "kept")] if row["kept"] else []
    names = [str(row["model"]).removeprefix("the ") for row in rows]
    title, unit = f"{metric} on held-out rows", f"{metric} (%)" if factor == 100 else metric
    return Panel(title, "", unit, lines, marks, ticks=names, band_title="bar: ± one standard error")


def _panel(run: RunCurves, quantity: str) -> Panel:
    """Return a quantity of the tuned run on each part of the data, and dashed that of the run with λ at its start."""
    percent = is_share(quantity)
    others = _name_of_others(run)
    lines, marks = [], []
    for part, (title, color) in PARTS.items():
        column = f"{part}_{quantity}"
        tuned = _scaled(history_line(f"{title}, tuned", run.rows, column, color), percent)
        dash = "dash" if run.rows else "solid"
        plain = _scaled(history_line(f"{title}, {others}", run.plain_rows, column, color, dash), percent)
        lines += [tuned] if part == "train" and run.rows else [tuned, plain]
        kept = plain if run.kept_run == "plain" else tuned
        marks += [(x, y) for x, y in zip(kept.x, kept.y, strict=True) if x == run.kept_step]
    name = quantity.replace("_", " ")
    unit = f"{name} (%)" if percent else f"{name} (mean loss per row)" if quantity == RISK else name
    label = f"kept: step {run.kept_step}"
    return Panel(name, STEP, unit, [line for line in lines if line.x], [(x, y, label) for x, y in marks])


def _name_of_others(run: RunCurves) -> str:
    """Return the name of the run beside the tuned one.

    After `pt.tune` its λ stays at the best scalars, such as one decay. If `pt.tune` keeps a procedure without tuning,
    this is the run that it keeps.
    """
    if not run.comparison:
        return "plain"
    return "λ fixed" if run.rows else next((str(row["model"]) for row in run.comparison if row["kept"]), "")


def _objective_panel(run: RunCurves) -> Panel:
    """Return J and its two parts, which share the unit of the loss. A run without ζ has one part only."""
    lines = [history_line("objective J", run.rows, "objective", BLUE)]
    if run.zeta:
        lines.append(history_line("validation risk", run.rows, "risk", ORANGE))
        penalty = history_line("ζ × regularizer", run.rows, "regularizer", GREEN)
        lines.append(penalty._replace(y=[run.zeta * y for y in penalty.y]))
    lines = [line for line in lines if line.x]
    return Panel("objective and its parts", STEP, "loss", lines, _kept_marks(run, lines[:1]))


def _gradient_panel(run: RunCurves) -> Panel:
    names = {"regularizer": ("regularizer √Y", GREEN), "hypergradient_norm": ("gradient of J in λ", PURPLE)}
    found = [history_line(label, run.rows, column, color) for column, (label, color) in names.items()]
    lines = [line for line in found if any(line.y)]
    positive = all(y > 0 for line in lines for y in line.y)
    return Panel("gradients", STEP, "norm", lines, _kept_marks(run, lines), log_y=positive)


def _kept_marks(run: RunCurves, lines: Sequence[Line]) -> list[tuple[float, float, str]]:
    if run.kept_run == "plain":
        return []
    points = [(x, y) for line in lines for x, y in zip(line.x, line.y, strict=True) if x == run.kept_step]
    return [(x, y, f"kept: step {run.kept_step}") for x, y in points]


def _scaled(line: Line, percent: bool) -> Line:
    return line._replace(y=[100 * y for y in line.y]) if percent else line
