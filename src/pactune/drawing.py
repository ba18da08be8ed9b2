"""Drawing with matplotlib: curves, points and bands as data, and the one function that draws them.

Code that has numbers to show builds a `Panel`. `draw_panels` makes a matplotlib figure of one or more panels, and
`encode_figure` returns it as a file's bytes. The HTML pages of `pactune.report` hold the same figures as SVG.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pactune.columns import Row
from pactune.extras import require

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "COLORS",
    "GREEN",
    "GREY",
    "GRID",
    "INK",
    "ORANGE",
    "PURPLE",
    "RED",
    "SKY",
    "Line",
    "Panel",
    "draw_panels",
    "encode_figure",
    "history_line",
]

# The palette of Okabe and Ito (2008), which colour-blind readers can tell apart. Its yellow is too pale on white.
COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#7d8590", "#e69f00", "#56b4e9")
RED, BLUE, GREEN, PURPLE, GREY, ORANGE, SKY = range(7)  # positions in COLORS
INK, GRID = "#1c2430", "#e3e7ec"
STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
FEW_POINTS = 8  # a line of fewer points shows them
FEW_DECADES = 100  # a logarithmic axis has labels within its decades if its values differ by a smaller factor
MOST_POINTS = 400  # of a line; the SVG of a longer one would be large
PER_ROW = 3  # panels side by side
LEGEND_ROW = 0.19  # inches
LEGEND_CHARACTERS = 46  # of a row of the legend


class Line(NamedTuple):
    """One line of a panel.

    Attributes:
        label: its name in the legend.
        x: where the points are.
        y: their values.
        dash: "solid", "dash", "dot" or "dashdot".
        color: a position in `COLORS`; larger numbers start again at its beginning, with other dashes.
        band: the lower and the upper end of an interval at each x. It is a shaded band, or a bar at every point if
            there is no line.
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

    Attributes:
        title: printed above the axes.
        x_title: title of the x axis.
        y_title: title of the y axis, with the unit.
        lines: what is drawn.
        marks: points to mark with a ring, as (x, y, label). Rings of one label share an entry of the legend.
        log_y: draw y on a logarithmic axis.
        log_x: draw x on a logarithmic axis.
        verticals: dotted vertical lines, as (x, label); an empty label does not enter the legend.
        right: lines drawn against a second y axis on the right.
        right_title: title of that axis.
        ticks: labels for x = 0, 1, 2, …, where x stands for categories.
        band_title: what the bands are, such as "95 % interval over 5 seeds"; an entry of the legend.
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
    band_title: str = ""


def history_line(label: str, rows: Sequence[Row], column: str, color: int, dash: str = "solid") -> Line:
    """Return a column of a history against the outer step; rows that lack the column are left out."""
    points = [(row["outer_step"], row[column]) for row in rows if column in row]
    return Line(label, [x for x, _ in points], [y for _, y in points], dash, color)


def draw_panels(panels: Sequence[Panel], title: str = "") -> Figure:
    """Draw panels side by side, in rows of at most three, under a common title."""
    require("matplotlib")
    from matplotlib.figure import Figure

    count = max(1, len(panels))
    columns = 2 if count == 4 else min(count, PER_ROW)
    rows = -(-count // columns)
    height = 3.5 + LEGEND_ROW * max(map(_legend_rows, panels), default=0)
    figure = Figure(figsize=(4.6 * columns, rows * height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11)
    places = figure.subplots(rows, columns, squeeze=False).flat
    for axes, panel in itertools.zip_longest(places, panels):
        if panel is None:
            axes.set_visible(False)
        else:
            _draw_panel(axes, panel)
    return figure


def encode_figure(figure: Figure, suffix: str) -> bytes:
    """Return a figure as the content of a ".png", ".pdf" or ".svg" file; the same numbers give the same bytes.

    An SVG has texts as texts and no background.
    """
    from matplotlib import rc_context

    content = BytesIO()
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix)
    background = "none" if suffix == ".svg" else "auto"
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pactune"}):
        figure.savefig(content, format=suffix[1:], dpi=130, metadata=metadata, facecolor=background)
    return content.getvalue()


def _legend_rows(panel: Panel) -> int:
    labels = [*(line.label for line in panel.lines), *(label for *_, label in panel.marks)]
    labels += [*(label for _, label in panel.verticals), *(line.label for line in panel.right), panel.band_title]
    found = [_label(label) for label in dict.fromkeys(labels) if label]
    return -(-sum(label.count("\n") + 1 for label in found) // _legend_columns(found))


def _legend_columns(labels: Sequence[str]) -> int:
    """Return 2 if two columns of labels are no wider than the axes, else 1. The first column has the first half."""
    half = -(-len(labels) // 2)
    columns = [max((len(label) for label in part), default=0) for part in (labels[:half], labels[half:])]
    return 2 if sum(columns) <= LEGEND_CHARACTERS else 1


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        if len(line.x):
            _draw_line(axes, line)
    _draw_marks(axes, panel)
    axes.set_title(_plain(panel.title), fontsize=10 if "\n" not in panel.title else 8, color=INK)
    axes.set_xlabel(_plain(panel.x_title), color=INK)
    axes.set_ylabel(_plain(panel.y_title), color=INK)
    _set_scales(axes, panel)
    axes.set_facecolor("none")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=INK, labelsize=9)
    axes.spines[:].set_color(INK)
    axes.spines[["top"] if panel.right else ["top", "right"]].set_visible(False)
    handles = axes.get_legend_handles_labels()[0]
    if panel.right:
        handles += _draw_right(axes, panel)
    if panel.band_title and any(line.band for line in (*panel.lines, *panel.right)):
        handles.append(_band_handle(panel.band_title))
    if handles:
        columns = _legend_columns([str(handle.get_label()) for handle in handles])
        style: dict[str, Any] = {"fontsize": 8.5, "frameon": False, "labelcolor": INK, "ncols": columns}
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.17), borderaxespad=0, **style)


def _draw_marks(axes: Axes, panel: Panel) -> None:
    labels = set[str]()
    for x, y, label in panel.marks:
        shown = _label("" if label in labels else label)
        labels.add(label)
        axes.plot([x], [y], marker="o", markersize=9, fillstyle="none", color=INK, linestyle="", label=shown)
    for x, label in panel.verticals:
        axes.axvline(x, color=INK, linewidth=1, linestyle=":", label=_label(label))


def _set_scales(axes: Axes, panel: Panel) -> None:
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    places = [x for line in panel.lines for x in line.x]
    if panel.log_x:
        _label_few_decades(axes.xaxis, places)
    if panel.log_y:
        _label_few_decades(axes.yaxis, [y for line in panel.lines for y in line.y])
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), list(map(_plain, panel.ticks)))
        axes.set_xlim(-0.5, len(panel.ticks) - 0.5)
    elif places and all(isinstance(x, int) for x in places) and not panel.log_x:
        if min(places) == max(places):
            axes.set_xlim(min(places) - 1, max(places) + 1)
        axes.locator_params(axis="x", integer=True)


def _label_few_decades(axis: Axis, values: Sequence[float]) -> None:
    """Label 1, 2 and 5 of every decade with plain numbers if a logarithmic axis has less than two decades."""
    found = [value for value in values if value > 0]
    if not found or max(found) >= FEW_DECADES * min(found):
        return
    ticker = require("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def _draw_right(axes: Axes, panel: Panel) -> list[Artist]:
    """Draw the lines of the right axis, color both axes' titles like their lines, and return the lines' handles."""
    other = axes.twinx()
    for line in panel.right:
        _draw_line(other, line)
    axes.yaxis.label.set_color(_color(panel.lines[0]))
    other.set_ylabel(panel.right_title, color=_color(panel.right[0]))
    other.spines[["top", "left"]].set_visible(False)
    other.spines[:].set_color(INK)
    other.tick_params(which="both", colors=INK, labelsize=9)
    return list(other.get_legend_handles_labels()[0])


def _draw_line(axes: Axes, line: Line) -> None:
    color, points = _color(line), _thinned(line.y)
    x, y = [line.x[i] for i in points], [line.y[i] for i in points]
    style = "" if line.mode == "markers" else STYLES[_dash(line)]
    (drawn,) = axes.plot(x, y, linestyle=style, linewidth=1.6, color=color, label=_label(line.label))
    if line.mode != "lines" or len(x) < FEW_POINTS:
        drawn.set(marker="o", markersize=5 if line.mode == "markers" else 3.5)
    if line.band is None:
        return
    low, high = ([values[i] for i in points] for values in line.band)
    if line.mode == "markers":
        axes.vlines(x, low, high, color=color, linewidth=1.2)
    else:
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)


def _thinned(values: Sequence[float]) -> list[int]:
    """Return the places of the points to draw: of a long line, the least and the largest value of each short part."""
    count = len(values)
    if count <= MOST_POINTS:
        return list(range(count))
    parts = MOST_POINTS // 2
    ends = [count * part // parts for part in range(parts + 1)]
    kept = {0, count - 1}
    for start, end in itertools.pairwise(ends):
        kept |= {min(range(start, end), key=values.__getitem__), max(range(start, end), key=values.__getitem__)}
    return sorted(kept)


def _band_handle(title: str) -> Artist:
    from matplotlib.patches import Patch

    return Patch(facecolor=COLORS[GREY], alpha=0.3, label=_label(title))


def _plain(text: str) -> str:
    """Return a text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")


def _label(text: str) -> str:
    """Return a label for the legend, which leaves out empty ones. Without the space it would leave out "_a" too.

    A long label is wrapped.
    """
    plain = "\n".join(textwrap.wrap(_plain(text), LEGEND_CHARACTERS))
    return f" {plain}" if plain.startswith("_") else plain or "_nolegend_"


def _color(line: Line) -> str:
    return COLORS[line.color % len(COLORS)]


def _dash(line: Line) -> str:
    """Return the dashes of a line; solid lines of a color that comes a second time are dashed."""
    again = line.color // len(COLORS)
    return line.dash if line.dash != "solid" else list(STYLES)[again % len(STYLES)]
