"""A hold-out certificate from counts alone, for a model that is somewhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from pactune.bounds.certificate import Claim, Evidence
from pactune.bounds.losses import BoundedLoss, ZeroOne
from pactune.checks import check_flag, check_type
from pactune.problem.provenance import Provenance

__all__ = ["CountedHoldOut"]


@dataclass(frozen=True)
class CountedHoldOut(Claim):
    """A number of errors on a number of rows; that the rows were fresh has to be stated.

    Args:
        evidence: the mean loss, without a log-ratio.
        fresh: somebody states that nothing has seen the rows or been chosen by them.
        loss: what was counted.
    """

    evidence: Evidence
    fresh: bool
    loss: BoundedLoss = field(default_factory=ZeroOne)
    provenance: Provenance = field(default_factory=Provenance)

    mode = "hold-out"

    def __post_init__(self) -> None:
        check_type("evidence", self.evidence, Evidence, "an Evidence")
        check_flag("fresh", self.fresh)
        check_type("loss", self.loss, BoundedLoss, "a BoundedLoss")
        check_type("provenance", self.provenance, Provenance, "a Provenance")

    def broken(self) -> list[str]:
        """Return the conditions that are not met."""
        if self.fresh:
            return []
        return [
            "fresh sample: counts do not say whether the model, its hyperparameters or a choice by hand saw the rows"
        ]

    def measure(self) -> Evidence:
        """Return what was counted."""
        return self.evidence

    def assumptions(self) -> list[str]:
        """Return what nobody can check."""
        return [
            "the rows are independent draws from the distribution that the number is about",
            "the rows were fresh: nothing has seen them or been chosen by them, as was stated",
        ]
