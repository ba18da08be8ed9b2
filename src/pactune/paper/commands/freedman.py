"""`pactune reproduce freedman` and `freedman-null`: the paper's feature selection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pactune.paper.commands.options import Output, Quick, begin
from pactune.report.printing import FormatOption, OutputFormat, print_result

if TYPE_CHECKING:
    from pactune.report.page import Table

__all__ = ["freedman", "freedman_null"]

Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Number of data seeds.")]
KEPT = ("settings", "selection", "test_mse_below_validation", "rate", "correlation", "ablation")


def freedman(
    output: Output = None, quick: Quick = False, seeds: Seeds = None, output_format: FormatOption = OutputFormat.TABLE
) -> None:
    """Reproduce Freedman's paradox with two true predictors."""
    results = _run("freedman", output, quick=quick, seeds=seeds)
    _print("freedman", results, output_format)


def freedman_null(
    output: Output = None, quick: Quick = False, seeds: Seeds = None, output_format: FormatOption = OutputFormat.TABLE
) -> None:
    """Reproduce Freedman's paradox with no true predictor."""
    results = _run("freedman-null", output, quick=quick, seeds=seeds)
    _print("freedman-null", results, output_format)


def _run(name: str, output: Path | None, *, quick: bool, seeds: int | None) -> dict[str, Any]:
    """Run the study into its folder and draw its figures; return its results."""
    home = begin(name, output or Path("runs") / name)
    from pactune.paper.freedman.figures import draw_figures, figure_data
    from pactune.paper.freedman.study import FreedmanStudy, run_study
    from pactune.report.progress import stderr_progress
    from pactune.tracking.run_folder import RunFolder

    null = name == "freedman-null"
    study = FreedmanStudy.quick(null=null) if quick else FreedmanStudy(null=null)
    study = replace(study, seeds=seeds or study.seeds)
    folder = RunFolder(home)
    with folder.run(name, study.settings()):
        results = run_study(study, record=folder.append, progress=stderr_progress(name))
        folder.write_results(results)
        draw_figures(figure_data(results), folder.folder)
    typer.echo(f"{name}: written to {folder.folder}", err=True)
    return results


def _print(name: str, results: dict[str, Any], output_format: OutputFormat) -> None:
    document = {key: results[key] for key in KEPT}
    print_result(output_format, document, [(name, _table(results))], _notes(results))


def _table(results: dict[str, Any]) -> Table:
    from pactune.report.page import Table

    rows = []
    for criterion, found in results["selection"].items():
        error = found["mean_test_mse"]
        rows.append(
            [
                criterion,
                f"{found['exact']} of {found['of']}",
                f"{found['mean_selected']['mean']:.1f}",
                f"{found['mean_true_found']['mean']:.1f}",
                f"{error['mean']:.3f}",
                f"{error['low']:.3f}–{error['high']:.3f}",
            ]
        )
    return Table(("criterion", "right", "features", "true", "test MSE", "95 % interval"), rows)


def _notes(results: dict[str, Any]) -> list[str]:
    rate, share = results["rate"], results["rate"]["share_exact"]
    exact = (
        f"pac-bayes exactly right on {rate['exact']} of {rate['seeds']} seeds: {share['mean']:.1%} "
        f"(95 % interval {share['low']:.1%}–{share['high']:.1%})"
    )
    correlations = [
        f"correlation of objective and {error} along the path, {criterion}: {value['mean']:+.2f}"
        for criterion, found in results["correlation"].items()
        for error, value in found.items()
    ]
    return [exact, *correlations]
