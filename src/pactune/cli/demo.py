"""`pactune demo`: what `pt.tune` does, in half a minute, on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pactune.report.printing import FormatOption, OutputFormat, print_result
from pactune.storage.files import make_folder
from pactune.storage.user_paths import output_folder

if TYPE_CHECKING:
    from pactune.results.result import Result

__all__ = ["demo"]


def demo(
    output: Annotated[Path, typer.Option(help="Folder for report.html.")] = Path("pactune-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of images and of the initial weights.")] = 0,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Train a linear classifier on 100 images of digits: plain training, one decay, and decays tuned by gradient."""
    typer.echo("demo: pt.tune trains a linear classifier on 100 images of scikit-learn's digits", err=True)
    make_folder(output_folder(output), "`--output`")
    try:
        result = _run(seed)
    except KeyboardInterrupt:
        typer.echo("pactune: interrupted before there was anything to compare", err=True)
        raise typer.Exit(130) from None
    _show(result, seed, output / "report.html", output_format)


def _run(seed: int) -> Result:
    import torch

    from pactune.demo.digits import run_demo

    torch.set_num_threads(1)  # for so small a model, more threads only wait for each other
    return run_demo(seed, progress=True)


def _show(result: Result, seed: int, path: Path, output_format: OutputFormat) -> None:
    from pactune.demo.page import accuracy_sentence, write_demo_page
    from pactune.report.comparison import comparison_table

    page = write_demo_page(result, seed, path)
    document = {
        "table": result.comparison,
        "verdict": result.verdict,
        "pays": result.pays,
        "test_accuracy": result.kept["test_accuracy"],
        "report": str(page),
    }
    notes = ["", result.verdict, accuracy_sentence(result), f"report: {page}"]
    print_result(output_format, document, [("", comparison_table(result.comparison))], notes)
