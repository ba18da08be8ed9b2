"""The picture of `pactune select`: the criterion against the number of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pactune.drawing import BLUE, Line, Panel

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["path_panels"]


def path_panels(criterion: str, path: pd.DataFrame, chosen: int) -> list[Panel]:
    """Return two panels: the criterion and the validation R² along the path.

    Args:
        criterion: name of the criterion.
        path: `path_` of the selector that minimised the criterion.
        chosen: the number of features at which the criterion is smallest.
    """
    return [
        _panel(f"objective ({criterion})", path["objective"], chosen),
        _panel("validation R²", path["validation_r2"], chosen),
    ]


def _panel(label: str, values: pd.Series[float], chosen: int) -> Panel:
    line = Line("path", range(len(values)), values.tolist(), color=BLUE, mode="lines+markers")
    return Panel("", "number of features", label, [line], verticals=[(chosen, f"chosen: {chosen}")])
