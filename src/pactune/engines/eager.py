"""The eager engine: plain autograd, one step after the other, any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pactune.problem.inner_problem import InnerProblem
from pactune.rounds.engine import Engine, RoundChain

__all__ = ["Eager"]


@dataclass
class Eager(Engine):
    """Run every step as it is written. The reference for every other engine."""

    def run_ahead(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Run nothing ahead."""
        return 0

    def mark_stateful(self, problem: InnerProblem) -> None:
        """Do nothing: every step is run as it is written."""
