"""Options that several commands about tables share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["DelimiterOption", "Task", "parse_delimiter"]


class Task(StrEnum):
    """The kind of target."""

    AUTO = "auto"
    REGRESSION = "regression"
    CLASSIFICATION = "classification"


DelimiterOption = Annotated[
    str, typer.Option("--delimiter", help="Character between the values of a CSV file, or 'tab'.")
]


def parse_delimiter(text: str) -> str:
    r"""Return the character that an option names.

    >>> parse_delimiter("tab"), parse_delimiter(";")
    ('\t', ';')
    """
    found = "\t" if text in ("tab", "\\t") else text
    if len(found) != 1 or found in '"\r\n' or not found.isascii():
        raise typer.BadParameter(f"must be one character or 'tab', got {text!r}", param_hint="--delimiter")
    return found
