"""`pactune sweep SPEC`: a grid of tuning runs on Ray."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pactune.columns import PREFIXES

if TYPE_CHECKING:
    from pactune.sweeps import SweepResult

__all__ = ["sweep"]

WIDE = 240  # characters of a line that goes to a file or a pipe


def sweep(
    spec: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="TOML file that says what to build and fit. Its functions are run: read it first.",
        ),
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="Module outside the spec's folder from which it may take functions; repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the sweep; runs/NAME-OF-SPEC by default.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help='Ray cluster, as "host:6379" or "auto"; this machine by default.')
    ] = None,
    printed: Annotated[Literal["table", "json"], typer.Option("--format", help="How to print.")] = "table",
) -> None:
    """Fit every cell of a grid, each in a folder of its own; the same command goes on where the last one stopped.

    This runs the code that SPEC names: functions of files in its own folder, and of modules given with --allow.
    """
    from pactune.sweeps import read_spec
    from pactune.sweeps import sweep as run_sweep

    folder = output or Path("runs") / spec.stem
    again = f"pactune: the same command goes on from {folder}"
    try:
        with redirect_stdout(sys.stderr):  # Ray, and the user's code, may print
            asked = read_spec(spec, allow or ())
            found = run_sweep(asked.build, asked.grid, run_dir=folder, address=address, progress=True, **asked.settings)
    except KeyboardInterrupt:
        typer.echo(again, err=True)
        raise typer.Exit(130) from None
    page = found.write_report()
    if printed == "json":
        typer.echo(json.dumps(_document(found, page), ensure_ascii=False, indent=1))
    else:
        _print_table(found)
    typer.echo(f"sweep: written to {page}", err=True)
    if found.status == "interrupted":
        done = sum(bool(cell.ending) for cell in found.cells)
        typer.echo(f"pactune: interrupted with {done} of {len(found.cells)} cells done", err=True)
        typer.echo(again, err=True)
        raise typer.Exit(130)
    if found.failed:
        typer.echo(_failures(found), err=True)
        raise typer.Exit(1)


def _document(found: SweepResult, page: Path) -> dict[str, object]:
    cells = json.loads(found.table.to_json(orient="records"))
    return {"status": found.status, "cells": cells, "folder": str(found.folder), "report": str(page)}


def _print_table(found: SweepResult) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from pactune.report.sweep import number_text, shown_columns

    frame, keys = found.table, list(found.cells[0].values)
    shown = [name for name in shown_columns(frame) if name.startswith(PREFIXES)]
    titles = [name.replace("_", " ").replace("accuracy", "acc.") for name in shown]
    table = Table(*keys, "status", "steps", *titles, box=None, pad_edge=False)
    for row in frame.to_dict("records"):
        numbers = (number_text(row[name]) for name in shown)
        table.add_row(*(escape(str(row[key])) for key in keys), str(row["status"]), str(row["outer_steps"]), *numbers)
    width = None if sys.stdout.isatty() else WIDE
    Console(file=sys.stdout, highlight=False, width=width).print(table)


def _failures(found: SweepResult) -> str:
    words = [f"pactune: {len(found.failed)} of {len(found.cells)} cells failed; the same command tries them again"]
    words += [f"  {cell.name}: {cell.error}" for cell in found.failed]
    return "\n".join(words)
