"""The eager engine: plain autograd, one step after the other, for any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pactune.problem.inner_problem import InnerProblem
from pactune.rounds.engine import CHANGED, Engine, RoundChain

__all__ = ["Eager"]


@dataclass
class Eager(Engine):
    """Run every step with plain autograd. This is the reference for every other engine."""

    def run_first_steps(self, round_chains: Sequence[RoundChain], steps: int) -> int:
        """Run nothing: the chains run every step themselves."""
        return 0

    def mark_unrecordable(self, *problems: InnerProblem, reason: str = CHANGED) -> None:
        """Do nothing: this engine records nothing."""
