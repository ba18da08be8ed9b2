"""The picture of `pactune select`: the criterion and the validation R² against the number of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pactune.drawing import BLUE, RED, Line, Panel

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["path_panels"]


def path_panels(criterion: str, path: pd.DataFrame, plain: pd.DataFrame, chosen: int) -> list[Panel]:
    """Return two panels: the criterion along its path, and the validation R² along both paths.

    Args:
        criterion: name of the criterion.
        path: `path_` of the selector that minimised the criterion.
        plain: `path_` of a selector with criterion "validation".
        chosen: the number of features at which the criterion is smallest.
    """
    scores = [_line(criterion, path["validation_r2"])]
    if criterion != "validation":
        scores.append(_line("validation score alone", plain["validation_r2"])._replace(color=RED, dash="dash"))
    return [
        Panel(
            "",
            "number of features",
            f"objective ({criterion})",
            [_line(criterion, path["objective"])],
            verticals=[(chosen, f"chosen: {chosen}")],
        ),
        Panel("", "number of features", "validation R²", scores, verticals=[(chosen, "")]),
    ]


def _line(label: str, values: pd.Series[float]) -> Line:
    return Line(label, range(len(values)), values.tolist(), color=BLUE, mode="lines+markers")
