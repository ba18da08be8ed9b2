"""Figures as files: panels drawn with matplotlib and written as PNG and PDF."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pactune.drawing import Panel, draw_panels, encode_figure
from pactune.storage.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save_figure", "save_figures", "save_panels"]

SUFFIXES = (".png", ".pdf")


def save_panels(panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Write every panel as a PNG and a PDF named after its title; return the files."""
    return save_figures({_file_name(panel.title): draw_panels([panel]) for panel in panels}, folder)


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures, given by the stems of their files, as PNG and as PDF; return the files."""
    make_folder(folder, "the folder")
    files = {folder / f"{stem}{suffix}": figure for stem, figure in figures.items() for suffix in SUFFIXES}
    for file, figure in files.items():
        save_figure(figure, file)
    return list(files)


def save_figure(figure: Figure, file: Path) -> None:
    """Write a figure as PNG or PDF, by the suffix of the file.

    Raises:
        RunFolderError: the file cannot be written.
    """
    write_atomically(file, encode_figure(figure, file.suffix))


def _file_name(title: str) -> str:
    """Return a title as the stem of a file.

    >>> _file_name("linear, MNIST: test accuracy")
    'linear-mnist-test-accuracy'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower().replace("ζ", "zeta")).strip("-")
