"""The comparison of `pt.tune` as text, in the unit of its metric."""

from __future__ import annotations

from pactune.columns import Row
from pactune.report.page import Table
from pactune.results.result import Result
from pactune.search.metrics import Metric

__all__ = ["comparison_table"]


def comparison_table(result: Result) -> Table:
    """Return the comparison that `pt.tune` made, a row per procedure."""
    metric = Metric(list(result.comparison[0])[1], True, None)
    header = ("model", f"{metric.name} on held-out rows", "gain over plain training", "steps", "")
    plain = result.comparison[0]
    return Table(header, [_cells(row, metric, is_plain=row is plain) for row in result.comparison])


def _cells(row: Row, metric: Metric, *, is_plain: bool) -> list[str]:
    value, error = row[metric.name], row["standard_error"]
    shown = f"{100 * value:.1f} ± {100 * error:.1f} %" if metric.percent else f"{value:.4g} ± {error:.2g}"
    gain = "" if is_plain else metric.shown_difference(row["gain"], row["gain_error"])
    return [row["model"], shown, gain, str(row["steps"]), "kept" if row["kept"] else ""]
