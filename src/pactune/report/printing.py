"""The `--format` option of all commands, and the function that prints their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pactune.report.page import Table

__all__ = ["FormatOption", "OutputFormat", "print_result"]

WIDE = 240  # characters of a line that goes to a file or a pipe


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
    *,
    compact: bool = False,
) -> None:
    """Print a result on stdout: as JSON, or as tables with sentences below them.

    Args:
        output_format: the format that the user chose.
        document: the result as JSON can hold it.
        tables: the result as tables with their titles; a title may be empty.
        notes: sentences below the tables.
        compact: draw no boxes around the tables, and do not wrap their lines in a file or a pipe.
    """
    if output_format is OutputFormat.JSON:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=1))
        return
    for title, table in tables:
        _print_table(title, table, compact=compact)
    for note in notes:
        typer.echo(note)


def _print_table(title: str, table: Table, *, compact: bool) -> None:
    from rich.box import HEAVY_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    box = None if compact else HEAVY_HEAD
    shown = RichTable(*map(escape, table.header), title=title or None, box=box, pad_edge=not compact)
    for row in table.rows:
        shown.add_row(*map(escape, row))  # a cell may hold a user's text, and brackets would mean a style
    width = WIDE if compact and not sys.stdout.isatty() else None
    Console(file=sys.stdout, highlight=False, width=width).print(shown)
