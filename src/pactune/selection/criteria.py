"""What forward selection minimises: a criterion scores every feature that could be added next.

A criterion is a frozen setting. Its state grows with the chosen features: `start` gives that of the empty model,
`extend` that of one feature more, `scores` judges all features that could follow. `least_squares.py` and `pac_bayes.py`
hold the criteria; a new one has these four methods and a row in the table of the tests.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from pactune.selection.moments import Array
from pactune.selection.rows import Rows

__all__ = ["Criterion", "Scores"]


class Scores(NamedTuple):
    """Objective of each candidate and its parts, each of shape `(p,)`; `inf` where the feature cannot be added."""

    objective: Array
    risk: Array
    regularizer: Array


class Criterion(Protocol):
    """What `forward_path` needs of a criterion."""

    def start(self, rows: Rows) -> Any:
        """Give the state of the empty model."""

    def empty(self, state: Any) -> Scores:
        """Score the empty model, as arrays of one entry."""

    def scores(self, state: Any) -> Scores:
        """Score every feature that could be added."""

    def extend(self, state: Any, feature: int) -> Any:
        """Give the state after adding a feature."""
