"""A hold-out certificate from counts, for a model that is not available here."""

from __future__ import annotations

from dataclasses import dataclass, field

from pactune.bounds.certificate import Claim, Evidence
from pactune.bounds.losses import BoundedLoss, ZeroOne
from pactune.checks import check_flag, check_type
from pactune.problem.provenance import Provenance

__all__ = ["CountedHoldOut"]


@dataclass(frozen=True)
class CountedHoldOut(Claim):
    """A number of errors on a number of rows. The user must state that the rows were fresh.

    Args:
        evidence: the mean loss, without a log-ratio.
        fresh: the user's statement that no training and no choice used the rows.
        loss: the loss that was counted.
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
        """Return the broken conditions."""
        if self.fresh:
            return []
        return [
            "fresh sample: counts do not say whether the model, its hyperparameters or a choice by hand saw the rows"
        ]

    def measure(self) -> Evidence:
        """Return the counts."""
        return self.evidence

    def assumptions(self) -> list[str]:
        """Return the assumptions that cannot be checked."""
        return [
            "the rows are independent draws from the distribution that the number is about",
            "the rows were fresh: nothing has seen them or been chosen by them, as was stated",
        ]
