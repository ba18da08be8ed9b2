"""A selection path as a picture: what the criterion saw, and what the validation score alone saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pactune.extras import require
from pactune.report.drawing import save_figure

__all__ = ["PathCurves", "draw_path", "path_curves"]


class PathCurves(NamedTuple):
    """What `draw_path` draws: curves over the number of features.

    Attributes:
        criterion: name of the criterion.
        objective: its value at every size of the path.
        validation_r2: validation R² along its path.
        plain_r2: validation R² along the path that the validation score alone would take.
        chosen: number of features where the criterion is smallest.
    """

    criterion: str
    objective: list[float]
    validation_r2: list[float]
    plain_r2: list[float]
    chosen: int


def path_curves(criterion: str, path: pd.DataFrame, plain: pd.DataFrame, chosen: int) -> PathCurves:
    """Gather the curves from the `path_` of a selector and of one with criterion "validation"."""
    return PathCurves(
        criterion=criterion,
        objective=path["objective"].tolist(),
        validation_r2=path["validation_r2"].tolist(),
        plain_r2=plain["validation_r2"].tolist(),
        chosen=chosen,
    )


def draw_path(curves: PathCurves, file: Path) -> None:
    """Draw the objective and both validation R² against the number of features."""
    require("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _line(left, curves.objective, curves.criterion)
    left.axvline(curves.chosen, color="0.6", linestyle=":", label=f"chosen: {curves.chosen}")
    left.set_ylabel(f"objective ({curves.criterion})")
    _line(right, curves.validation_r2, curves.criterion)
    if curves.criterion != "validation":
        _line(right, curves.plain_r2, "validation score alone", color="C3", linestyle="--")
    right.axvline(curves.chosen, color="0.6", linestyle=":")
    right.set_ylabel("validation R²")
    for axes in (left, right):
        axes.set_xlabel("number of features")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)
    save_figure(figure, file)


def _line(axes: Any, values: list[float], label: str, *, color: str = "C0", linestyle: str = "-") -> None:
    axes.plot(range(len(values)), values, color=color, linestyle=linestyle, marker="o", markersize=3.5, label=label)
