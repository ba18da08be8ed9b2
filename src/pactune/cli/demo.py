"""`pactune demo`: the effect in a minute, on data that needs no download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from pactune.demo.page import DemoLine

__all__ = ["demo"]


def demo(
    output: Annotated[Path, typer.Option(help="Folder for report.html.")] = Path("pactune-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the draw of images and of the initial weights.")] = 0,
    outer_steps: Annotated[int, typer.Option(min=1, help="Outer steps per run.")] = 80,
    output_format: Annotated[Literal["table", "json"], typer.Option("--format", help="How to print.")] = "table",
) -> None:
    """Tune 650 weight decays on 50 images of digits: validation risk alone beside the PAC-Bayes objective."""
    from pactune.demo.digits import DemoSettings, run_demo
    from pactune.demo.page import demo_lines, write_demo_page

    output.mkdir(parents=True, exist_ok=True)
    settings = DemoSettings(seed=seed, outer_steps=outer_steps)
    try:
        runs = run_demo(settings, progress=True)
    except KeyboardInterrupt:
        typer.echo("pactune: interrupted before there was anything to compare", err=True)
        raise typer.Exit(130) from None
    page = write_demo_page(runs, settings, output / "report.html")
    lines = demo_lines(runs)
    if output_format == "json":
        document = {"runs": [line._asdict() for line in lines], "verdict": runs.auto.verdict, "report": str(page)}
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))
        return
    _print_table(lines, runs.auto.verdict, page)


def _print_table(lines: list[DemoLine], verdict: str, page: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from pactune.demo.page import HEADER

    table = Table(*HEADER, box=None, pad_edge=False)
    for line in lines:
        table.add_row(*line.cells())
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\n{verdict}\nreport: {page}", soft_wrap=True)
