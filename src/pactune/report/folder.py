"""The page of `pactune report`: everything that a folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pactune import __version__
from pactune.errors import DataError
from pactune.report.page import Section, write_page
from pactune.report.runs import run_sections

__all__ = ["write_report"]


def write_report(home: Path, output: Path | None = None, studies: Sequence[Section] = ()) -> Path:
    """Write one self-contained page about a folder, from its journals alone.

    Args:
        home: the folder.
        output: the page; `report.html` in the folder by default.
        studies: sections about the studies in the folder, shown above those about single runs.

    Returns:
        The page.

    Raises:
        DataError: there is nothing to show.
    """
    sections = [*studies, *run_sections(home)]
    if not sections:
        raise DataError(f"{home} holds no journal of a study or of a run, and no exported JSON; nothing to report on")
    footer = f"pactune {__version__}; every number is read from the journals"
    return write_page(output or home / "report.html", f"pactune report: {home.resolve().name}", sections, footer)
