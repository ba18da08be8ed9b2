"""Settings of the rule behind `zeta="auto"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pactune.checks import NOT_NEGATIVE, POSITIVE, Rule, check_choice, check_count, check_number, shown
from pactune.errors import SettingError

__all__ = ["AutoZeta", "RelativeZeta"]


@dataclass(frozen=True)
class RelativeZeta:
    """ζ = fraction · ζ*. At ζ* the gradients of the risk and of ζ√Y have equal norms in the first outer step."""

    fraction: float


@dataclass(frozen=True)
class AutoZeta:
    """Choose ζ and the outer step to keep by cross-validation, without any test data.

    Each fold holds out a k-th of the training rows and of the validation rows, and tunes λ on the rest. Every outer
    step of every candidate gets a score on the held-out rows: the mean of 1 − exp(−loss/scale). Candidates are plain
    training (λ keeps its initial value) and the `fractions` of ζ*. The best candidate then runs on all rows, and its
    best step is kept. The number of runs is (folds + 1) times the number of candidates.

    Args:
        folds: k.
        fractions: the values of ζ to try, as fractions of ζ*; 0 is the bare validation risk.
        judge: the held-out rows that give the score: "both", or "valid" if training and validation data differ in
            distribution. With "valid" only validation rows are held out.
        scale: the loss at which the score is 0.63; None takes the validation risk before training. A loss that may
            be negative, or a start from a trained model, needs a number.
    """

    folds: int = 5
    fractions: tuple[float, ...] = (0.1, 0.0)
    judge: Literal["both", "valid"] = "both"
    scale: float | None = None

    def __post_init__(self) -> None:
        check_count("folds", self.folds, 2)
        if not isinstance(self.fractions, (tuple, list)) or not self.fractions:
            raise SettingError(
                f"`fractions` must be finite numbers ≥ 0, at least one, in a tuple, got {shown(self.fractions)}"
            )
        for fraction in self.fractions:
            check_number("fractions", fraction, Rule("finite numbers ≥ 0", NOT_NEGATIVE.holds))
        check_choice("judge", self.judge, ("both", "valid"))
        check_number("scale", self.scale, POSITIVE, none="for the risk before training")
