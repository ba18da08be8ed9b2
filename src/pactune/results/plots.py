"""Plots of a run with matplotlib: first the numbers, then the drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pactune.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pactune.results.result import Result

COLORS = {"train": "tab:blue", "valid": "tab:orange", "test": "tab:green"}

__all__ = ["Curve", "Panel", "draw_history", "history_panels"]


class Curve(NamedTuple):
    """One line of a panel."""

    label: str
    x: list[int]
    y: list[float]
    dashed: bool = False


class Panel(NamedTuple):
    """One set of axes."""

    title: str
    curves: list[Curve]
    log: bool = False


def history_panels(result: Result) -> list[Panel]:
    """Return the curves of a result: risks, accuracies, and the objective's parts."""
    risk = _family(result, "risk")
    accuracy = _family(result, "accuracy")
    parts = [_curve(result.rows, name, name) for name in ("objective", "regularizer", "hypergradient_norm")]
    panels = [Panel("risk", risk), Panel("accuracy", accuracy), Panel("objective and its parts", parts, log=True)]
    return [panel._replace(curves=found) for panel in panels if (found := [c for c in panel.curves if c.x])]


def draw_history(result: Result) -> Figure:
    """Draw `history_panels` side by side, with the kept step marked."""
    require("matplotlib")
    from matplotlib.figure import Figure

    panels = history_panels(result)
    figure = Figure(figsize=(4.6 * max(1, len(panels)), 3.6), layout="constrained")
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel)
        if result.kept_step:
            axis.axvline(result.kept_step, color="0.6", linewidth=0.8, linestyle=":", label="kept step")
        axis.legend(fontsize=7, frameon=False)
    return figure


def _family(result: Result, what: str) -> list[Curve]:
    tuned = [_curve(result.rows, f"{part}_{what}", f"{part}, tuned") for part in ("train", "valid", "test")]
    plain = [_curve(result.plain_rows, f"{part}_{what}", f"{part}, plain", True) for part in ("valid", "test")]
    return tuned + plain


def _curve(rows: list[dict[str, Any]], column: str, label: str, dashed: bool = False) -> Curve:
    points = [(row["outer_step"], row[column]) for row in rows if column in row]
    return Curve(label, [x for x, _ in points], [y for _, y in points], dashed)


def _draw(axis: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        color, line = COLORS.get(curve.label.split(",")[0]), "--" if curve.dashed else "-"
        axis.plot(curve.x, curve.y, label=curve.label, linewidth=1.4, linestyle=line, color=color)
    if panel.log and all(y > 0 for curve in panel.curves for y in curve.y):
        axis.set_yscale("log")
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel("outer step")
    axis.spines[["top", "right"]].set_visible(False)
