"""The figures of the paper's feature-selection section and appendix, from the study's results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pactune.drawing import BLUE, GREEN, GREY, ORANGE, RED, Line, Panel, draw_panels
from pactune.report.figure_files import save_figures
from pactune.report.page import Section

__all__ = ["Band", "FigureData", "draw_figures", "figure_data", "freedman_sections"]

_TITLES = {
    "validation": "Eq. 1: validation risk",
    "pac-bayes": "Eq. 5: PAC-Bayes (test MSE of θ_T)",
    "aic": "validation AIC",
}
_ZETA_NAMES = {"0": "ζ = 0 (noise alone)", "theory": "ζ² = βη/4", "fixed": "ζ² = 0.025"}


class Band(NamedTuple):
    """A curve over the number of features with its 95 % interval."""

    mean: list[float]
    low: list[float]
    high: list[float]


class FigureData(NamedTuple):
    """The numbers of all figures: for each criterion test error, objective and validation R² along its path.

    Attributes:
        null: True for the problem with no true predictor.
        one: curves on data seed 0; those of Eq. 5 have intervals over the Monte-Carlo chains.
        many: means over data seeds, with intervals over these.
        one_band: describes the intervals of `one`.
        many_band: describes the intervals of `many`.
        ablation: mean number of selected features for every ζ, as lists over β.
        betas: labels of the β of the ablation.
    """

    null: bool
    one: dict[str, dict[str, Band]]
    many: dict[str, dict[str, Band]]
    one_band: str
    many_band: str
    ablation: dict[str, list[float | None]]
    betas: list[str]


def figure_data(results: dict[str, Any]) -> FigureData:
    """Gather the curves from the results of `run_study`."""
    many = {name: {key: _band(values) for key, values in curves.items()} for name, curves in results["paths"].items()}
    if "expected_test_mse" in many["pac-bayes"]:
        many["pac-bayes"]["test_mse"] = many["pac-bayes"]["expected_test_mse"]
    models = results["chains"]["models"]
    one = {name: {key: _flat(values) for key, values in curves.items()} for name, curves in results["first"].items()}
    one["pac-bayes"] = {key: _band([model[key] for model in models]) for key in models[0]}
    cells = {(str(cell["beta"]), cell["zeta"]): cell["mean_selected"]["mean"] for cell in results["ablation"]}
    betas = list(dict.fromkeys(beta for beta, _ in cells))
    ablation = {zeta: [cells.get((beta, zeta)) for beta in betas] for zeta in _ZETA_NAMES}
    settings = results["settings"]
    return FigureData(
        null=settings["null"],
        one=one,
        many=many,
        one_band=f"95 % interval of the mean, {results['chains']['chains']} chains",
        many_band=f"95 % interval of the mean, {settings['seeds']} data seeds",
        ablation=ablation,
        betas=betas,
    )


def draw_figures(data: FigureData, folder: Path) -> list[Path]:
    """Draw every figure as PNG and PDF into a folder; return the files."""
    return save_figures({name: draw_panels(panels, title) for name, title, panels in _figures(data)}, folder)


def freedman_sections(results: dict[str, Any], name: str) -> list[Section]:
    """Return a section per figure of a study, with the panels of the figure."""
    return [Section(f"{name}: {title}", figures=panels) for _, title, panels in _figures(figure_data(results))]


def _figures(data: FigureData) -> list[tuple[str, str, list[Panel]]]:
    """Return the file name, the title and the panels of every figure."""
    problem = "no true predictor" if data.null else "two true predictors"
    paradox = f"Freedman's paradox, {problem}"
    return [
        ("objective-chains", f"{paradox}, data seed 0", _objective_panels(data, data.one, data.one_band)),
        ("objective-seeds", f"{paradox}, mean over data seeds", _objective_panels(data, data.many, data.many_band)),
        ("validation-r2", f"Validation R², {problem}", _r2_panels(data)),
        ("ablation", f"What noise and regularizer do, {problem}", [_ablation_panel(data)]),
    ]


def _band(intervals: Sequence[dict[str, float]]) -> Band:
    return Band(*([interval[name] for interval in intervals] for name in ("mean", "low", "high")))


def _flat(values: list[float]) -> Band:
    return Band(values, values, values)


def _objective_panels(data: FigureData, curves: dict[str, dict[str, Band]], band: str) -> list[Panel]:
    """Return test error (left axis) against objective (right axis) for each criterion."""
    return [
        Panel(
            title,
            "number of features",
            "test MSE",
            [_line("test MSE", curves[name]["test_mse"], BLUE)],
            right=[_line("objective", curves[name]["objective"], RED, "dash")],
            right_title="objective",
            verticals=_true_size(data),
            band_title=band,
        )
        for name, title in _TITLES.items()
    ]


def _r2_panels(data: FigureData) -> list[Panel]:
    """Return the validation R² of the paths that Eq. 1 and Eq. 5 take."""
    one = "data seed 0, Eq. 5 with the dynamics' noise in θ_T"
    many = "mean over data seeds, least-squares fits"
    return [_r2_panel(data, data.one, one, data.one_band), _r2_panel(data, data.many, many, data.many_band)]


def _r2_panel(data: FigureData, curves: dict[str, dict[str, Band]], title: str, band: str) -> Panel:
    lines = [
        _line("Eq. 5: PAC-Bayes", curves["pac-bayes"]["validation_r2"], BLUE),
        _line("Eq. 1: validation risk", curves["validation"]["validation_r2"], RED, "dash"),
    ]
    titles = (title, "number of features", "validation R²")
    return Panel(*titles, lines, verticals=_true_size(data), band_title=band)


def _ablation_panel(data: FigureData) -> Panel:
    """Return the number of selected features over β for every ζ."""
    lines = []
    styles = ((BLUE, "solid"), (ORANGE, "dash"), (GREEN, "dashdot"))
    for (color, dash), (zeta, name) in zip(styles, _ZETA_NAMES.items(), strict=True):
        points = [(x, value) for x, value in enumerate(data.ablation[zeta]) if value is not None]
        lines.append(Line(name, [x for x, _ in points], [y for _, y in points], dash, color, mode="lines+markers"))
    true = 0 if data.null else 2
    lines.append(Line("true features", [0, len(data.betas) - 1], [true, true], "dot", GREY))
    ticks = ["∞" if beta == "inf" else beta for beta in data.betas]
    return Panel("features selected", "β = τ/n", "features selected (mean)", lines, ticks=ticks)


def _line(label: str, band: Band, color: int, dash: str = "solid") -> Line:
    interval = None if band.low == band.high else (band.low, band.high)
    return Line(label, range(len(band.mean)), band.mean, dash, color, interval)


def _true_size(data: FigureData) -> list[tuple[float, str]]:
    """Return the vertical line at the number of true predictors, if there are any."""
    return [] if data.null else [(2, "two true predictors")]
