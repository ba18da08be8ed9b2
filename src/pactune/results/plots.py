"""The plot of a run: `history_panels` gathers its curves, `draw_history` draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pactune.columns import column_names, metric_names
from pactune.drawing import BLUE, GREEN, ORANGE, Line, Panel, draw_panels, history_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pactune.results.result import Result

__all__ = ["draw_history", "history_panels"]

PARTS = {"train": BLUE, "valid": ORANGE, "test": GREEN}
TERMS = {"objective": BLUE, "regularizer": ORANGE, "hypergradient_norm": GREEN}


def draw_history(result: Result) -> Figure:
    """Draw `history_panels` side by side."""
    return draw_panels(history_panels(result))


def history_panels(result: Result) -> list[Panel]:
    """Return the curves of a run: risks, metrics, and the objective's terms; each panel marks the kept step."""
    metrics = metric_names(column_names(result.rows))
    terms = [history_line(column, result.rows, column, color) for column, color in TERMS.items()]
    positive = all(y > 0 for line in terms for y in line.y)
    panels = [
        Panel("risk", "outer step", "", _by_part(result, "risk")),
        *(Panel(name, "outer step", "", _by_part(result, name)) for name in metrics),
        Panel("objective and its parts", "outer step", "", terms, log_y=positive),
    ]
    kept = [(result.kept_step, "kept step")] if result.kept_step else []
    drawn = [panel._replace(lines=[line for line in panel.lines if line.x], verticals=kept) for panel in panels]
    return [panel for panel in drawn if panel.lines]


def _by_part(result: Result, quantity: str) -> list[Line]:
    """Return a quantity of the tuned run on each part of the data, and dashed that of the plain run."""
    tuned = [history_line(f"{part}, tuned", result.rows, f"{part}_{quantity}", color) for part, color in PARTS.items()]
    plain = [
        history_line(f"{part}, plain", result.plain_rows, f"{part}_{quantity}", PARTS[part], "dash")
        for part in ("valid", "test")
    ]
    return tuned + plain
