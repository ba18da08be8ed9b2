"""One self-contained HTML page: headings, words, tables and figures, for wide and narrow, light and dark screens."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pactune.drawing import Panel
from pactune.report.inline_svg import inline_svg
from pactune.report.page_style import STYLE
from pactune.storage.files import make_folder, write_atomically

__all__ = ["MOST_BYTES", "Section", "Table", "write_page"]

NUMERIC = re.compile(r"[-+−]?[\d.]+(e[-+]?\d+)?( %)?")
SUMMARY = "settings, seeds, versions and time"
WIDE = 6  # a table with more columns is set in smaller type
MOST_ROWS = 300  # of a table
MOST_BYTES = 1_000_000  # of a page
FIGURE_BYTES = 800_000  # of the figures of a page, so that there is room for its tables
LEFT_OUT = "Figures are left out to keep this page small. The report of a folder further down shows them."


class Table(NamedTuple):
    """A table as text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def without_empty_columns(self) -> Table:
        """Return the table without columns that have no text in any row.

        >>> Table(["a", "b"], [["1", ""], ["2", ""]]).without_empty_columns()
        Table(header=['a'], rows=[['1'], ['2']])
        """
        kept = [place for place in range(len(self.header)) if any(row[place] for row in self.rows)]
        return Table([self.header[place] for place in kept], [[row[place] for place in kept] for row in self.rows])


class Section(NamedTuple):
    """A heading with paragraphs, tables and figures, and tables of details that open on a click."""

    heading: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Panel] = ()
    details: Sequence[Table] = ()


def write_page(path: Path, title: str, sections: Sequence[Section], footer: str = "") -> Path:
    """Write the page; it needs no network and no other file. Only a page with figures needs matplotlib.

    A page of very many figures leaves out the last of them, and says so.

    Raises:
        RunFolderError: the file cannot be written.
    """
    left, parts = FIGURE_BYTES, []
    for number, section in enumerate(sections):
        figures = _figures(section.figures, number, left)
        left -= sum(map(len, figures))
        parts.append(_section(section, figures))
    body = "\n".join(parts)
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n'
        f"<body><h1>{html.escape(title)}</h1>\n{body}\n<footer>{html.escape(footer)}</footer></body></html>\n"
    )
    make_folder(path.parent, "the folder")
    write_atomically(path, text.encode(errors="replace"))
    return path


def _figures(panels: Sequence[Panel], section: int, most: int) -> list[str]:
    """Return the figures of a section that fit into so many bytes."""
    found = []
    for number, panel in enumerate(panels):
        if most <= 0:
            break
        svg = inline_svg(panel, f"figure-{section}-{number}")
        most -= len(svg)
        if most > 0:
            found.append(f"<figure><figcaption>{html.escape(panel.title)}</figcaption>{svg}</figure>")
    return found


def _section(section: Section, figures: Sequence[str]) -> str:
    paragraphs = [*section.paragraphs, *([LEFT_OUT] if len(figures) < len(section.figures) else [])]
    words = "\n".join(f"<p>{html.escape(text)}</p>" for text in paragraphs)
    tables = "\n".join(map(_table, section.tables))
    drawn = "\n".join(figures)
    shown = f'{words}\n{tables}\n<div class="figures">{drawn}</div>' if figures else f"{words}\n{tables}"
    hidden = "\n".join(f"<details><summary>{SUMMARY}</summary>{_table(table)}</details>" for table in section.details)
    return f"<h2>{html.escape(section.heading)}</h2>\n{shown}\n{hidden}"


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    header, lines = table.without_empty_columns()
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    numeric = [all(NUMERIC.fullmatch(cell) for cell in column if cell) for column in zip(*lines, strict=True)]
    rows = ["<tr>" + "".join(map(_cell, row, header, numeric)) + "</tr>" for row in lines[:MOST_ROWS]]
    more = f"<p>The first {MOST_ROWS} of {len(lines)} rows are shown.</p>" if len(lines) > MOST_ROWS else ""
    kind = "wide" if len(header) > WIDE else "pairs" if len(header) == 2 else ""
    body = "\n".join(rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>{more}'


def _cell(text: str, title: str, numeric: bool) -> str:
    kind = ' class="number"' if numeric else ""
    return f'<td{kind} data-title="{html.escape(title)}">{html.escape(text)}</td>'
