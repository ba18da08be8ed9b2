"""Drawing with matplotlib: curves, points and bands as data, and the one function that draws them.

Code that has numbers to show builds a `Panel`. `draw_panels` makes a matplotlib figure of one or more panels, and
`encode_figure` returns it as a file's bytes. The HTML pages of `pactune.report` draw the same panels with plotly.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Literal, NamedTuple

from pactune.columns import Row
from pactune.extras import require

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "COLORS",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "RED",
    "Line",
    "Panel",
    "draw_panels",
    "encode_figure",
    "history_line",
]

COLORS = (
    *("#c0392b", "#1f6fb2", "#2c8a57", "#8e6bbf", "#7f8c8d", "#d68910"),
    *("#16a3a8", "#d1549a", "#6b4f2a", "#9bbb35", "#34408b", "#e27d60"),
)
RED, BLUE, GREEN, GREY, ORANGE = 0, 1, 2, 4, 5  # positions in COLORS
INK = "#1c2430"
STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


class Line(NamedTuple):
    """One line of a panel.

    Attributes:
        label: its name in the legend.
        x: where the points are.
        y: their values.
        dash: "solid", "dash", "dot" or "dashdot".
        color: a position in `COLORS`; larger numbers start again at its beginning.
        band: the lower and the upper end of an interval at each x.
        mode: draw the line, its points, or both.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dash: str = "solid"
    color: int = 0
    band: tuple[Sequence[float], Sequence[float]] | None = None
    mode: Literal["lines", "markers", "lines+markers"] = "lines"


class Panel(NamedTuple):
    """One set of axes as data.

    The fields from `verticals` on exist for matplotlib only; HTML pages do not draw them.

    Attributes:
        title: printed above the axes.
        x_title: title of the x axis.
        y_title: title of the y axis.
        lines: what is drawn.
        marks: single points to mark, as (x, y, label).
        log_y: draw y on a logarithmic axis.
        log_x: draw x on a logarithmic axis.
        verticals: dotted vertical lines, as (x, label); an empty label does not enter the legend.
        right: lines drawn against a second y axis on the right.
        right_title: title of that axis.
        ticks: labels for x = 0, 1, 2, …, where x stands for categories.
    """

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]
    marks: Sequence[tuple[float, float, str]] = ()
    log_y: bool = False
    log_x: bool = False
    verticals: Sequence[tuple[float, str]] = ()
    right: Sequence[Line] = ()
    right_title: str = ""
    ticks: Sequence[str] = ()


def history_line(label: str, rows: Sequence[Row], column: str, color: int, dash: str = "solid") -> Line:
    """Return a column of a history against the outer step; rows that lack the column are left out."""
    points = [(row["outer_step"], row[column]) for row in rows if column in row]
    return Line(label, [x for x, _ in points], [y for _, y in points], dash, color)


def draw_panels(panels: Sequence[Panel], title: str = "") -> Figure:
    """Draw panels side by side under a common title."""
    require("matplotlib")
    from matplotlib.figure import Figure

    columns = max(1, len(panels))
    figure = Figure(figsize=(max(5.2, 4.6 * columns), 3.8), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11)
    for axes, panel in zip(figure.subplots(1, columns, squeeze=False)[0], panels, strict=False):
        _draw_panel(axes, panel)
    return figure


def encode_figure(figure: Figure, suffix: str) -> bytes:
    """Return a figure as the content of a ".png" or ".pdf" file; the same numbers give the same bytes."""
    content = BytesIO()
    metadata = {"CreationDate": None} if suffix == ".pdf" else None
    figure.savefig(content, format=suffix[1:], dpi=130, metadata=metadata)
    return content.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    for x, y, label in panel.marks:
        axes.plot([x], [y], marker="o", markersize=9, fillstyle="none", color=INK, linestyle="", label=label)
    for x, label in panel.verticals:
        axes.axvline(x, color="0.6", linewidth=1, linestyle=":", label=label or "_nolegend_")
    axes.set_title(panel.title, fontsize=10 if "\n" not in panel.title else 8)
    axes.set_xlabel(panel.x_title)
    axes.set_ylabel(panel.y_title)
    _set_scales(axes, panel)
    axes.spines[["top"] if panel.right else ["top", "right"]].set_visible(False)
    handles = axes.get_legend_handles_labels()[0]
    if panel.right:
        handles += _draw_right(axes, panel)
    # matplotlib finds the best place by the left axis alone.
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper center" if panel.right else "best")


def _set_scales(axes: Axes, panel: Panel) -> None:
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    elif all(isinstance(x, int) for line in panel.lines for x in line.x) and not panel.log_x:
        axes.locator_params(axis="x", integer=True)


def _draw_right(axes: Axes, panel: Panel) -> list[Artist]:
    """Draw the lines of the right axis, color both axes' titles like their lines, and return the lines' handles."""
    other = axes.twinx()
    for line in panel.right:
        _draw_line(other, line)
    axes.yaxis.label.set_color(_color(panel.lines[0]))
    other.set_ylabel(panel.right_title, color=_color(panel.right[0]))
    other.spines["top"].set_visible(False)
    return list(other.get_legend_handles_labels()[0])


def _draw_line(axes: Axes, line: Line) -> None:
    style = "" if line.mode == "markers" else STYLES[line.dash]
    (drawn,) = axes.plot(line.x, line.y, linestyle=style, linewidth=1.5, color=_color(line), label=line.label)
    if line.mode != "lines":
        drawn.set(marker="o", markersize=5 if line.mode == "markers" else 3.5)
    if line.band is not None:
        axes.fill_between(line.x, *line.band, color=_color(line), alpha=0.18, linewidth=0)


def _color(line: Line) -> str:
    return COLORS[line.color % len(COLORS)]
