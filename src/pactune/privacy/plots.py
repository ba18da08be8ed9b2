"""The (ε, δ) frontier of a run as a figure: first the numbers, then the drawing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pactune.extras import require
from pactune.privacy.accounting import Privacy, frontier
from pactune.privacy.gaussian import classical_epsilon

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FrontierCurves", "draw_frontier", "frontier_curves"]


class FrontierCurves(NamedTuple):
    """ε as a function of δ: by the exact formula, by the textbook formula, and by the paper's formula."""

    delta: list[float]
    exact: list[float]
    textbook: list[float]
    paper: list[float]


def frontier_curves(privacy: Privacy) -> FrontierCurves:
    """Return the frontier of a run, and the values of two other formulas for it.

    The paper's Theorem A.5 is the textbook formula with half the sensitivity, so its ε is half as large. For C chains
    it charges Cε and Cδ, while μ grows with √C.
    """
    points = frontier(privacy)
    deltas = [point.delta for point in points]
    one = privacy.mu / math.sqrt(privacy.chains)
    textbook = [classical_epsilon(delta, privacy.mu) for delta in deltas]
    paper = [privacy.chains * classical_epsilon(delta / privacy.chains, one / 2) for delta in deltas]
    return FrontierCurves(deltas, [point.epsilon for point in points], textbook, paper)


def draw_frontier(privacy: Privacy) -> Figure:
    """Draw `frontier_curves`."""
    require("matplotlib")
    from matplotlib.figure import Figure

    curves = frontier_curves(privacy)
    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axis = figure.subplots()
    axis.plot(curves.delta, curves.exact, label="exact", linewidth=1.8)
    axis.plot(curves.delta, curves.textbook, label="textbook, valid for ε < 1", linestyle="--", linewidth=1.2)
    axis.plot(curves.delta, curves.paper, label="as printed in the paper", linestyle=":", linewidth=1.2)
    axis.set(xscale="log", xlabel="δ", ylabel="ε", title=f"privacy of the prior, μ = {privacy.mu:.3g}")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
    return figure
