"""The `--format` option of all commands, and the function that prints their results."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pactune.report.page import Table

__all__ = ["FormatOption", "OutputFormat", "print_result", "table_lines"]

WIDE = 240  # characters of a line that goes to a file or a pipe
GAP = 2  # spaces between columns
NUMERIC = re.compile(r"[-+−]?[\d.]+(e[-+]?\d+)?( %)?")


class OutputFormat(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="How to print the results.")]


def print_result(
    output_format: OutputFormat,
    document: object,
    tables: Sequence[tuple[str, Table]] = (),
    notes: Sequence[str] = (),
) -> None:
    """Print a result on stdout: as JSON, or as tables with sentences below them.

    Args:
        output_format: the format that the user chose.
        document: the result as JSON can hold it.
        tables: the result as tables with their titles; a title may be empty.
        notes: sentences below the tables.
    """
    if output_format is OutputFormat.JSON:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=1))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
    for number, (title, table) in enumerate(tables):
        typer.echo("\n".join([*([""] if number else []), *([title] if title else []), *table_lines(table, width)]))
    for note in notes:
        typer.echo(_wrapped(note, width) if sys.stdout.isatty() else note)


def table_lines(table: Table, width: int) -> list[str]:
    r"""Return a table as lines of at most so many characters. No word is cut.

    If the columns do not fit side by side, every row becomes a small paragraph.

    >>> from pactune.report.page import Table
    >>> table = Table(["model", "accuracy", "steps"], [["the tuned model", "85.1 %", "40"]])
    >>> print("\n".join(table_lines(table, 40)))
    model            accuracy  steps
    the tuned model  85.1 %    40
    >>> print("\n".join(table_lines(table, 18)))
    the tuned model
        accuracy 85.1
        %, steps 40
    """
    shown = table.without_empty_columns()
    columns = list(zip(shown.header, *shown.rows, strict=True))
    widths = _column_widths([[str(cell) for cell in column] for column in columns], width)
    if widths is None:
        return [line for row in shown.rows for line in _paragraph(shown.header, row, width)]
    return [line for row in (shown.header, *shown.rows) for line in _row_lines(row, widths)]


def _column_widths(columns: list[list[str]], width: int) -> list[int] | None:
    """Return the widths of columns that fit side by side; the widest are wrapped first. None if words do not fit."""
    widths = [max(map(len, column)) for column in columns]
    least = [max(len(word) for cell in column for word in (cell.split() or [""])) for column in columns]
    room = width - GAP * (len(columns) - 1)
    while sum(widths) > room:
        spare = [one - few for one, few in zip(widths, least, strict=True)]
        if not any(spare):
            return None
        widths[spare.index(max(spare))] -= 1
    wrapped = [
        [line for cell in column for line in textwrap.wrap(cell, w)] for column, w in zip(columns, widths, strict=True)
    ]
    return [max(map(len, lines), default=0) for lines in wrapped]


def _row_lines(row: Sequence[str], widths: list[int]) -> list[str]:
    cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = itertools.zip_longest(*cells, fillvalue="")
    return [(" " * GAP).join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _paragraph(header: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """Return a row as a line with its names, and below it the other cells with their titles."""
    first = next((place for place, cell in enumerate(row) if not NUMERIC.fullmatch(cell)), 0)
    cells = [
        f"{title} {cell}".strip() for title, cell in zip(header[first + 1 :], row[first + 1 :], strict=True) if cell
    ]
    indented = textwrap.wrap(", ".join(cells), max(width - 4, 10), break_long_words=False, break_on_hyphens=False)
    names = [f"{title} {cell}" for title, cell in zip(header[:first], row[:first], strict=True)]
    return [" ".join([*names, row[first]]), *(f"    {line}" for line in indented)]


def _wrapped(note: str, width: int) -> str:
    return textwrap.fill(note, width, break_long_words=False, break_on_hyphens=False)
