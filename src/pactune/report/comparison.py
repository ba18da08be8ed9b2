"""The comparison of `pt.tune` as text, in the unit of its metric."""

from __future__ import annotations

from collections.abc import Sequence

from pactune.columns import Row
from pactune.report.page import Table
from pactune.search.metrics import Metric

__all__ = ["comparison_rows", "comparison_table"]


def comparison_table(comparison: Sequence[Row]) -> Table:
    """Return the comparison that `pt.tune` made, a row per procedure."""
    metric = list(comparison[0])[1]
    header = ("model", f"{metric} on held-out rows", "gain over plain training", "steps", "")
    return Table(header, comparison_rows(comparison))


def comparison_rows(comparison: Sequence[Row]) -> list[list[str]]:
    """Return the rows of `comparison_table`. The last text of the kept one is not empty."""
    metric = Metric(list(comparison[0])[1], True, None)
    return [_cells(row, metric, is_plain=row is comparison[0]) for row in comparison]


def _cells(row: Row, metric: Metric, *, is_plain: bool) -> list[str]:
    value, error = row[metric.name], row["standard_error"]
    shown = f"{100 * value:z.1f} ± {100 * error:.1f} %" if metric.percent else f"{value:z.4g} ± {error:.2g}"
    gain = "" if is_plain else metric.shown_difference(row["gain"], row["gain_error"])
    return [str(row["model"]), shown, gain, str(row.get("steps", "")), "kept" if row["kept"] else ""]
