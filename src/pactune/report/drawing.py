"""The figures of a page as files: the same numbers drawn with matplotlib, as PNG and PDF."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from pactune.extras import require
from pactune.report.page import COLORS, Figure, Line
from pactune.tracking.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["save_figure", "save_figures"]

STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
SUFFIXES = (".png", ".pdf")


def save_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Draw every figure into a PNG and a PDF named after its title.

    Returns:
        The files.
    """
    require("matplotlib")
    from matplotlib.figure import Figure as Canvas

    make_folder(folder, "the folder")
    files = []
    for figure in figures:
        canvas = Canvas(figsize=(5.2, 3.9), layout="constrained")
        _draw(canvas.subplots(), figure)
        for suffix in SUFFIXES:
            files.append(folder / f"{_file_name(figure.title)}{suffix}")
            save_figure(canvas, files[-1])
    return files


def save_figure(canvas: Canvas, file: Path) -> None:
    """Write a drawing as PNG or PDF, by the suffix of the file; the same numbers give the same bytes.

    Raises:
        RunFolderError: it cannot be written.
    """
    content, pdf = BytesIO(), file.suffix == ".pdf"
    canvas.savefig(content, format=file.suffix[1:], dpi=130, metadata={"CreationDate": None} if pdf else None)
    write_atomically(file, content.getvalue())


def _file_name(title: str) -> str:
    """Return a title as the stem of a file.

    >>> _file_name("linear, MNIST: test accuracy")
    'linear-mnist-test-accuracy'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower().replace("ζ", "zeta")).strip("-")


def _draw(axes: Axes, figure: Figure) -> None:
    for line in figure.lines:
        _draw_line(axes, line)
    for x, y, label in figure.marks:
        axes.plot([x], [y], marker="o", markersize=9, fillstyle="none", color="#1c2430", linestyle="", label=label)
    axes.set_xscale("log" if figure.log_x else "linear")
    axes.set_yscale("log" if figure.log else "linear")
    axes.set_title(figure.title, fontsize=10)
    axes.set_xlabel(figure.x_title)
    axes.set_ylabel(figure.y_title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)


def _draw_line(axes: Axes, line: Line) -> None:
    color = COLORS[line.color % len(COLORS)]
    if line.points:
        axes.plot(line.x, line.y, marker="o", markersize=5, linestyle="", color=color, label=line.label)
        return
    axes.plot(line.x, line.y, linestyle=STYLES[line.dash], linewidth=1.5, color=color, label=line.label)
    if line.band is not None:
        axes.fill_between(line.x, *line.band, color=color, alpha=0.18, linewidth=0)
