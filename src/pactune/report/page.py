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
TEXT_BYTES = 600_000  # of the words and tables of a page, so that there is room for figures
FRAME_BYTES = 20_000  # of the style sheet, the headings and the sentences about parts that are left out
LEFT_OUT = "are left out to keep this page small. The report of a folder further down shows them."


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

    A page of very many tables and figures leaves out the last of them, and says so.

    Raises:
        RunFolderError: the file cannot be written.
    """
    body = "\n".join(_bodies(sections))
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n'
        f"<body><h1>{html.escape(title)}</h1>\n{body}\n<footer>{html.escape(footer)}</footer></body></html>\n"
    )
    make_folder(path.parent, "the folder")
    write_atomically(path, text.encode(errors="replace"))
    return path


def _bodies(sections: Sequence[Section]) -> list[str]:
    """Return the sections as HTML. Words and tables have room first, then figures."""
    texts, room = list[tuple[str, str]](), TEXT_BYTES
    for section in sections:
        text, details = _text(section), _details(section)
        size = _size(text) + _size(details)
        texts.append((text, details) if size <= room else (f"<p>Tables {LEFT_OUT}</p>", ""))
        room -= size if size <= room else 0
    left, bodies = MOST_BYTES - FRAME_BYTES - sum(_size(text) + _size(details) for text, details in texts), []
    for number, (section, (text, details)) in enumerate(zip(sections, texts, strict=True)):
        figures = _figures(section.figures, number, left)
        left -= sum(map(_size, figures))
        drawn = "\n".join(figures)
        missing = f"<p>Figures {LEFT_OUT}</p>\n" if len(figures) < len(section.figures) else ""
        grid = f'<div class="figures">{drawn}</div>\n' if figures else ""
        bodies.append(f"<h2>{html.escape(section.heading)}</h2>\n{text}\n{missing}{grid}{details}")
    return bodies


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _figures(panels: Sequence[Panel], section: int, most: int) -> list[str]:
    """Return the figures of a section that fit into so many bytes."""
    found = []
    for number, panel in enumerate(panels):
        if most <= 0:
            break
        svg = inline_svg(panel, f"figure-{section}-{number}")
        most -= _size(svg) + _size(panel.title) + 100
        if most > 0:
            found.append(f"<figure><figcaption>{html.escape(panel.title)}</figcaption>{svg}</figure>")
    return found


def _text(section: Section) -> str:
    """Return the words and tables of a section."""
    words = [f"<p>{html.escape(text)}</p>" for text in section.paragraphs]
    return "\n".join([*words, *map(_table, section.tables)])


def _details(section: Section) -> str:
    """Return the tables that open on a click."""
    return "\n".join(f"<details><summary>{SUMMARY}</summary>{_table(table)}</details>" for table in section.details)


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
