"""The `--format` option that commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["OutputFormat", "Printed"]


class OutputFormat(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


Printed = Annotated[OutputFormat, typer.Option("--format", help="How to print the results.")]
