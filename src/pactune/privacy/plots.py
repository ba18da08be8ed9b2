"""The (ε, δ) frontier of a run: `frontier_curves` computes it, `draw_frontier` draws it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pactune.drawing import BLUE, GREEN, ORANGE, Line, Panel, draw_panels
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
    curves = frontier_curves(privacy)
    lines = [
        Line("exact", curves.delta, curves.exact, color=BLUE),
        Line("textbook, valid for ε < 1", curves.delta, curves.textbook, "dash", ORANGE),
        Line("as printed in the paper", curves.delta, curves.paper, "dot", GREEN),
    ]
    return draw_panels([Panel(f"privacy of the prior, μ = {privacy.mu:.3g}", "δ", "ε", lines, log_x=True)])
