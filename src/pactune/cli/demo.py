"""`pactune demo`: the effect of the regularizer in a minute, on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pactune.report.printing import FormatOption, OutputFormat, print_result

__all__ = ["demo"]


def demo(
    output: Annotated[Path, typer.Option(help="Folder for report.html.")] = Path("pactune-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the draw of images and of the initial weights.")] = 0,
    outer_steps: Annotated[int, typer.Option(min=1, help="Outer steps per run.")] = 80,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Tune 650 weight decays on 50 images of digits: validation risk alone beside the PAC-Bayes objective."""
    from pactune.demo.digits import DemoSettings, run_demo
    from pactune.demo.page import HEADER, demo_rows, write_demo_page
    from pactune.report.page import Table

    output.mkdir(parents=True, exist_ok=True)
    settings = DemoSettings(seed=seed, outer_steps=outer_steps)
    try:
        runs = run_demo(settings, progress=True)
    except KeyboardInterrupt:
        typer.echo("pactune: interrupted before there was anything to compare", err=True)
        raise typer.Exit(130) from None
    page = write_demo_page(runs, settings, output / "report.html")
    rows, verdict = demo_rows(runs), runs.auto.verdict
    print_result(
        output_format,
        {"runs": [row._asdict() for row in rows], "verdict": verdict, "report": str(page)},
        [("", Table(HEADER, [row.cells() for row in rows]))],
        ["", verdict, f"report: {page}"],
        compact=True,
    )
