"""The figures of the paper's feature-selection section and appendix, from the study's results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pactune.report.drawing import save_figure

__all__ = ["Band", "FigureData", "draw_figures", "figure_data"]

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
    """What is drawn: for each criterion the test error, the objective and the validation R² along its path.

    Attributes:
        null: no true predictor.
        one: curves on data seed 0; those of Eq. 5 have intervals over the Monte-Carlo chains.
        many: curves over data seeds, with intervals over these.
        one_note: what the intervals of `one` are over.
        many_note: what the intervals of `many` are over.
        ablation: mean number of selected features for every ζ, as lists over β.
        betas: labels of the β of the ablation.
    """

    null: bool
    one: dict[str, dict[str, Band]]
    many: dict[str, dict[str, Band]]
    one_note: str
    many_note: str
    ablation: dict[str, list[float | None]]
    betas: list[str]


def figure_data(results: dict[str, Any]) -> FigureData:
    """Gather the curves from what `run_study` returns."""
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
        one_note=f"data seed 0; shaded: 95 % interval over {results['chains']['chains']} chains",
        many_note=f"mean over {settings['seeds']} data seeds, exact; shaded: 95 % interval",
        ablation=ablation,
        betas=betas,
    )


def draw_figures(data: FigureData, folder: Path) -> list[Path]:
    """Draw every figure as PNG and PDF.

    Args:
        data: what to draw.
        folder: where to.

    Returns:
        The files written.
    """
    figures = {
        "objective-chains": _objective_figure(data, data.one, data.one_note),
        "objective-seeds": _objective_figure(data, data.many, data.many_note),
        "validation-r2": _r2_figure(data),
        "ablation": _ablation_figure(data),
    }
    files = []
    for name, figure in figures.items():
        for suffix in (".png", ".pdf"):
            files.append(folder / f"{name}{suffix}")
            save_figure(figure, files[-1])
    return files


def _band(intervals: Sequence[dict[str, float]]) -> Band:
    return Band(*([interval[name] for interval in intervals] for name in ("mean", "low", "high")))


def _flat(values: list[float]) -> Band:
    return Band(values, values, values)


def _figure(columns: int, title: str) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.7), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _problem(data: FigureData) -> str:
    return "no true predictor" if data.null else "two true predictors"


def _objective_figure(data: FigureData, curves: dict[str, dict[str, Band]], note: str) -> Any:
    """Draw test error (left axis) against objective (right axis) for each criterion."""
    figure, panels = _figure(len(_TITLES), f"Freedman's paradox, {_problem(data)} ({note})")
    for axes, (name, title) in zip(panels, _TITLES.items(), strict=True):
        other = axes.twinx()
        lines = [
            _draw_band(axes, curves[name]["test_mse"], "C0", "-", "test MSE"),
            _draw_band(other, curves[name]["objective"], "C3", "--", "objective"),
        ]
        axes.set_title(title, fontsize=10)
        axes.set_ylabel("test MSE", color="C0")
        other.set_ylabel("objective", color="C3")
        _mark_true(data, axes)
        axes.legend(handles=lines, frameon=False, loc="upper center")
    return figure


def _r2_figure(data: FigureData) -> Any:
    """Draw the validation R² of the paths that Eq. 1 and Eq. 5 take."""
    figure, panels = _figure(2, f"Validation R², {_problem(data)}")
    notes = (f"{data.one_note}\nEq. 5 with the dynamics' noise in θ_T", f"{data.many_note}\nleast-squares fits")
    for axes, curves, note in zip(panels, (data.one, data.many), notes, strict=True):
        _draw_band(axes, curves["pac-bayes"]["validation_r2"], "C0", "-", "Eq. 5: PAC-Bayes")
        _draw_band(axes, curves["validation"]["validation_r2"], "C3", "--", "Eq. 1: validation risk")
        axes.set_ylabel("validation R²")
        axes.set_title(note, fontsize=8)
        _mark_true(data, axes)
        axes.legend(frameon=False)
    return figure


def _ablation_figure(data: FigureData) -> Any:
    """Draw the number of selected features over β for every ζ."""
    figure, (axes,) = _figure(1, f"What noise and regularizer do, {_problem(data)}")
    for place, (zeta, name) in enumerate(_ZETA_NAMES.items()):
        points = [(x, value) for x, value in enumerate(data.ablation[zeta]) if value is not None]
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=f"C{place}", marker="os^"[place], label=name)
    axes.axhline(0 if data.null else 2, color="0.6", linestyle=":", label="true features")
    axes.set_xticks(range(len(data.betas)), ["∞" if beta == "inf" else beta for beta in data.betas])
    axes.set_xlabel("β = τ/n")
    axes.set_ylabel("features selected (mean)")
    axes.legend(frameon=False)
    return figure


def _draw_band(axes: Any, band: Band, color: str, style: str, label: str) -> Any:
    sizes = range(len(band.mean))
    (line,) = axes.plot(sizes, band.mean, color=color, linestyle=style, label=label)
    axes.fill_between(sizes, band.low, band.high, color=color, alpha=0.2, linewidth=0)
    axes.set_xlabel("number of features")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return line


def _mark_true(data: FigureData, axes: Any) -> None:
    if not data.null:
        axes.axvline(2, color="0.6", linestyle=":", linewidth=1)
