"""The interface of a criterion, which forward selection minimises.

A criterion is a frozen dataclass of settings. Its state grows with the chosen features: `start` returns the state of
the empty model, `extend` that with one more feature, and `scores` scores all features that could be added next. A new
criterion has these four methods and a row in the table of the tests.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from pactune.selection.moments import Array
from pactune.selection.rows import Rows

__all__ = ["Criterion", "Scores"]


class Scores(NamedTuple):
    """The objective of each candidate and its parts, each of shape `(p,)`; `inf` if the feature cannot be added."""

    objective: Array
    risk: Array
    regularizer: Array


class Criterion(Protocol):
    """A criterion for `forward_path`."""

    def start(self, rows: Rows) -> Any:
        """Return the state of the empty model."""

    def empty(self, state: Any) -> Scores:
        """Score the empty model, as arrays of one entry."""

    def scores(self, state: Any) -> Scores:
        """Score every feature that could be added."""

    def extend(self, state: Any, feature: int) -> Any:
        """Return the state after adding a feature."""
