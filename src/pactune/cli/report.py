"""`pactune report DIR`: one page of everything in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of studies or runs, or of exported JSON.")],
    output: Annotated[Path | None, typer.Option(help="The page; report.html in the folder by default.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Also write each study as one small JSON file into this folder.")
    ] = None,
) -> None:
    """Build one self-contained page from journals: figures that zoom, tables, settings, versions, seeds and time."""
    from pactune.paper.weight_decay.page import study_sections
    from pactune.paper.weight_decay.records import export_study, read_studies
    from pactune.report.folder import write_report

    page = write_report(folder, output, study_sections(folder))
    if export is not None:
        for study in read_studies(folder):
            typer.echo(f"exported: {export_study(study, export)}", err=True)
    typer.echo(f"report: {page}")
