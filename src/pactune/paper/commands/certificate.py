"""`pactune reproduce certificate`: certified error rates on digits and MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pactune.paper.commands.options import Output, Quick, begin
from pactune.report.printing import FormatOption, OutputFormat, print_result
from pactune.storage.user_paths import input_folder

__all__ = ["certificate"]


def certificate(
    output: Output = None,
    quick: Quick = False,
    mnist: Annotated[Path | None, typer.Option(help="Folder with the MNIST idx files or mnist.npz.")] = None,
    device: Annotated[str, typer.Option(help="Where MNIST runs; cuda unless there is time.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the splits.")] = 0,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Certify error rates over grids declared beforehand."""
    home = begin("certificate", output or Path("runs") / "certificate")
    if mnist is not None:
        input_folder(mnist)
    from pactune.paper.certificates import studies
    from pactune.paper.certificates.page import HEADER, table_rows, write_certificate_page
    from pactune.report.page import Table
    from pactune.tracking.run_folder import RunFolder

    def report(words: str) -> None:
        typer.echo(f"certificate: {words}", err=True)

    folder = RunFolder(home)
    settings = {"seed": seed, "quick": quick, "mnist": mnist is not None, "device": device}
    with folder.run("certificate", settings):
        found = studies.digits_studies(seed, quick=quick, record=folder.append, report=report)
        if mnist is not None:
            for run in (studies.mnist_small_studies, studies.mnist_large_studies):
                found |= run(mnist, device, seed, record=folder.append, report=report)
        folder.write_results({"settings": settings, "studies": found})
        page = write_certificate_page(found, folder.folder / "report.html")
    report(f"written to {page}")
    print_result(output_format, studies.summarise(found), [("certificate", Table(HEADER, table_rows(found)))])
