"""`pactune reproduce ITEM`: the paper's figures and tables, one command each."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pactune.paper.commands import weight_decay
from pactune.report.printing import OutputFormat, Printed

__all__ = ["ITEMS", "Item", "app"]


@dataclass(frozen=True)
class Item:
    """Something that can be reproduced.

    Attributes:
        name: of the command.
        shows: which figures of the paper.
        cost: what the full form takes on two cores.
        quick_cost: what `--quick` takes.
    """

    name: str
    shows: str
    cost: str
    quick_cost: str


# A new item joins with a row here and a command of the same name below.
ITEMS = (
    Item(
        "freedman",
        "section 4.1, two true predictors: test MSE against Eq. 1, Eq. 5 and AIC; validation R²; ablation β × ζ",
        "10 min",
        "30 s",
    ),
    Item("freedman-null", "the same with no true predictor", "10 min", "30 s"),
    Item(
        "certificate",
        "beyond the paper: certified error rates on digits; on MNIST too with --mnist FOLDER (3 min on a GPU)",
        "2 min",
        "20 s",
    ),
    Item(
        "weight-decay",
        "section 4.2, Figures 4.2 and C.5–C.13: test and validation curves of a decay per parameter, 5 starts",
        "30 min",
        "10 s",
    ),
    Item(
        "table",
        "Table C.1: least weight norm against Eq. 5 over draws of the images; the linear rows, 12 draws",
        "2 h",
        "10 s",
    ),
    Item("correlation", "Figures 4.3 and C.14–C.16: generalisation error against the regularizer", "2 h", "10 s"),
    Item("scan", "Figures C.17–C.19: test loss against ζ; shares its runs with correlation", "2 h", "10 s"),
    Item("truncation", "Figure B.1: the regularizer alone, K = 0, 1, W = 10, 100 and full", "2 h", "10 s"),
    Item("restart", "mentioned in appendix C.2: θ_0 set back at every outer step", "1 h", "10 s"),
)

app = typer.Typer(help="Reproduce the paper's figures and tables.", no_args_is_help=False)

Output = Annotated[Path | None, typer.Option("--output", help="Run folder; runs/ITEM by default.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small version, to see that it works.")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Number of data seeds.")]


@app.callback(invoke_without_command=True)
def _list_items(
    context: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="Show what can be reproduced and its cost.")] = False,
) -> None:
    if listed:
        for item in ITEMS:
            typer.echo(f"{item.name:16} {item.cost:>6} (--quick {item.quick_cost})  {item.shows}")
        typer.echo("Costs are for two CPU cores and a linear classifier; residual networks need a GPU (--device cuda).")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command("freedman")
def _freedman(
    output: Output = None, quick: Quick = False, seeds: Seeds = None, printed: Printed = OutputFormat.TABLE
) -> None:
    """Reproduce Freedman's paradox with two true predictors."""
    _run_freedman("freedman", output, quick=quick, seeds=seeds, printed=printed)


@app.command("freedman-null")
def _freedman_null(
    output: Output = None, quick: Quick = False, seeds: Seeds = None, printed: Printed = OutputFormat.TABLE
) -> None:
    """Reproduce Freedman's paradox with no true predictor."""
    _run_freedman("freedman-null", output, quick=quick, seeds=seeds, printed=printed)


@app.command("certificate")
def _certificate(
    output: Output = None,
    quick: Quick = False,
    mnist: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder with the MNIST idx files or mnist.npz.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where MNIST runs; cuda unless there is time.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the splits.")] = 0,
    printed: Printed = OutputFormat.TABLE,
) -> None:
    """Certify error rates over grids declared beforehand."""
    from pactune.paper.certificates import studies
    from pactune.paper.certificates.page import write_certificate_page
    from pactune.tracking.run_folder import RunFolder

    def report(words: str) -> None:
        typer.echo(f"certificate: {words}", err=True)

    folder = RunFolder(output or Path("runs") / "certificate")
    settings = {"seed": seed, "quick": quick, "mnist": mnist is not None, "device": device}
    with folder.run("certificate", settings):
        found = studies.digits_studies(seed, quick=quick, record=folder.append, report=report)
        if mnist is not None:
            for run in (studies.mnist_small_studies, studies.mnist_large_studies):
                found |= run(mnist, device, seed, record=folder.append, report=report)
        folder.write_results({"settings": settings, "studies": found})
        page = write_certificate_page(found, folder.folder / "report.html")
    typer.echo(f"certificate: written to {page}", err=True)
    _print_certificates(found, printed)


def _print_certificates(studies: dict[str, Any], printed: OutputFormat) -> None:
    from pactune.paper.certificates.page import HEADER, table_rows
    from pactune.paper.certificates.studies import summarise

    if printed is OutputFormat.JSON:
        typer.echo(json.dumps(summarise(studies), ensure_ascii=False, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADER, title="certificate")
    for row in table_rows(studies):
        table.add_row(*row)
    Console(file=sys.stdout).print(table)


for _command in weight_decay.COMMANDS:
    app.command(_command.name)(_command.function())


def _run_freedman(name: str, output: Path | None, *, quick: bool, seeds: int | None, printed: OutputFormat) -> None:
    from pactune.paper.freedman.figures import draw_figures, figure_data
    from pactune.paper.freedman.study import FreedmanStudy, run_study
    from pactune.report.progress import stderr_progress
    from pactune.tracking.run_folder import RunFolder

    null = name == "freedman-null"
    study = FreedmanStudy.quick(null=null) if quick else FreedmanStudy(null=null)
    study = replace(study, seeds=seeds or study.seeds)
    folder = RunFolder(output or Path("runs") / name)
    with folder.run(name, study.settings()):
        results = run_study(study, record=folder.append, progress=stderr_progress(name))
        folder.write_results(results)
        draw_figures(figure_data(results), folder.folder)
    typer.echo(f"{name}: written to {folder.folder}", err=True)
    _print_freedman(name, results, printed)


def _print_freedman(name: str, results: dict[str, Any], printed: OutputFormat) -> None:
    if printed is OutputFormat.JSON:
        kept = ("settings", "selection", "test_mse_below_validation", "rate", "correlation", "ablation")
        typer.echo(json.dumps({key: results[key] for key in kept}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("criterion", "right", "features", "true", "test MSE", "95 % interval", title=name)
    for criterion, found in results["selection"].items():
        error = found["mean_test_mse"]
        table.add_row(
            criterion,
            f"{found['exact']} of {found['of']}",
            f"{found['mean_selected']['mean']:.1f}",
            f"{found['mean_true_found']['mean']:.1f}",
            f"{error['mean']:.3f}",
            f"{error['low']:.3f}–{error['high']:.3f}",
        )
    console, rate = Console(file=sys.stdout), results["rate"]
    console.print(table)
    share = rate["share_exact"]
    console.print(
        f"pac-bayes exactly right on {rate['exact']} of {rate['seeds']} seeds: {share['mean']:.1%} "
        f"(95 % interval {share['low']:.1%}–{share['high']:.1%})"
    )
    for criterion, found in results["correlation"].items():
        for error, value in found.items():
            console.print(f"correlation of objective and {error} along the path, {criterion}: {value['mean']:+.2f}")
