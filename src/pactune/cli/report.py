"""`pactune report DIR`: one page of everything in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pactune.storage.user_paths import input_folder, output_file

__all__ = ["report"]


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, results or studies, at any depth.")],
    output: Annotated[Path | None, typer.Option(help="The page; report.html in the folder by default.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Also write each study as one small JSON file into this folder.")
    ] = None,
) -> None:
    """Build one self-contained page of all runs, grids, sweeps, saved results and studies under a folder."""
    typer.echo(f"report: reading {folder}", err=True)
    input_folder(folder)
    if output is not None:
        output_file(output)
    from pactune.paper.contents import study_contents
    from pactune.paper.weight_decay.records import export_study, read_studies
    from pactune.report.folder import write_report

    page = write_report(folder, output, study_contents(folder))
    if export is not None:
        for study in read_studies(folder):
            typer.echo(f"exported: {export_study(study, export)}", err=True)
    typer.echo(f"report: {page}")
