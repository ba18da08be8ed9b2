"""`pactune sweep SPEC`: a grid of tuning runs on Ray."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pactune.columns import PREFIXES
from pactune.report.printing import FormatOption, OutputFormat, print_result
from pactune.storage.user_paths import input_file, output_folder

if TYPE_CHECKING:
    from pactune.report.page import Table
    from pactune.sweeps import SweepResult

__all__ = ["sweep"]


def sweep(
    spec: Annotated[
        Path,
        typer.Argument(
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
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Fit every cell of a grid, each in a folder of its own; the same command goes on where the last one stopped.

    This runs the code that SPEC names: functions of files in its own folder, and of modules given with --allow.
    """
    folder = output or Path("runs") / spec.stem
    typer.echo(f"sweep: reading {spec}", err=True)
    input_file(spec, "a spec")
    output_folder(folder)
    from pactune.sweeps import read_spec
    from pactune.sweeps import sweep as run_sweep

    again = f"pactune: the same command goes on from {folder}"
    try:
        with redirect_stdout(sys.stderr):  # Ray, and the user's code, may print
            asked = read_spec(spec, allow or ())
            found = run_sweep(asked.build, asked.grid, run_dir=folder, address=address, progress=True, **asked.settings)
    except KeyboardInterrupt:
        typer.echo(again, err=True)
        raise typer.Exit(130) from None
    page = found.write_report()
    print_result(output_format, _document(found, page), [("", _table(found))])
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


def _table(found: SweepResult) -> Table:
    from pactune.report.page import Table
    from pactune.report.sweep import cell_text, shown_columns

    keys = list(found.cells[0].values)
    shown = [name for name in shown_columns(found.table) if name.startswith(PREFIXES)]
    titles = [name.replace("_", " ").replace("accuracy", "acc.") for name in shown]
    rows = [
        [*(str(row[key]) for key in [*keys, "status", "outer_steps"]), *(cell_text(name, row[name]) for name in shown)]
        for row in found.table.to_dict("records")
    ]
    return Table((*keys, "status", "steps", *titles), rows)


def _failures(found: SweepResult) -> str:
    words = [f"pactune: {len(found.failed)} of {len(found.cells)} cells failed; the same command tries them again"]
    words += [f"  {cell.name}: {cell.error}" for cell in found.failed]
    return "\n".join(words)
