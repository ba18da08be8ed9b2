"""The PAC-Bayes objective, Eq. 5: validation risk plus gradient incoherence along the trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pactune.checks import check_choice
from pactune.objectives.base import (
    REQUIRED,
    MeasuredSummand,
    Objective,
    PathContext,
    Zeta,
    check_bound,
    check_zeta,
    clip,
)
from pactune.trees import Params, add_, dot, scale, sub

__all__ = ["PACBayes", "SameDistribution"]


@dataclass(frozen=True)
class PACBayes(Objective):
    """J(λ) = E[R_V(θ_T)] + ζ √(Σ_t E‖∇R_T(θ_t) − ∇R_V(θ_t)‖²) (Equation 5).

    Args:
        zeta: a number ≥ 0, "theory" for √(βη/4), or "auto", which chooses ζ and the step to keep without test data.
        clip_train: clip ∇R_T, penalty included, to this norm in Δ_t. The step itself keeps the whole gradient, unless
            the inner dynamics has the same `clip`. With both clips at 1 the summand is 2 − 2·cosine similarity wherever
            the gradients are longer than 1 (Observation A.1).
        clip_valid: clip ∇R_V to this norm, as the private prior does (Corollary A.2).
        chain_mean: the position of the mean over chains: "inside" the root, as in the bound, or "outside"
            (Algorithm C.1).
    """

    zeta: Zeta = REQUIRED
    clip_train: float | None = None
    clip_valid: float | None = None
    chain_mean: Literal["inside", "outside"] = "inside"

    def __post_init__(self) -> None:
        check_zeta(self.zeta)
        check_bound("clip_train", self.clip_train)
        check_bound("clip_valid", self.clip_valid)
        check_choice("chain_mean", self.chain_mean, ("inside", "outside"))

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """True if nothing is clipped."""
        return self.clip_train is None and self.clip_valid is None

    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return ‖clip(∇R_T) − clip(∇R_V)‖²."""
        difference = sub(clip(train, self.clip_train), clip(valid, self.clip_valid))
        return dot(difference, difference)

    def measure(self, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True) -> MeasuredSummand:
        """Return the summand and its derivatives, which are ±2Δ if nothing is clipped."""
        if not self.closed:
            return super().measure(train, valid, context, by_valid=by_valid)
        difference = sub(train, valid)
        value = dot(difference, difference)
        second = scale(-2.0, difference) if by_valid else {}
        add_(difference, difference)
        return MeasuredSummand(value, difference, second)


@dataclass(frozen=True)
class SameDistribution(PACBayes):
    """J(λ) = E[R_T(θ_T)] + ζ √Σ_t E‖Δ_t‖², for training and validation data of one distribution (Observation A.3).

    The validation posterior is independent of the training sample, so the bound needs no private prior. The first
    term is the validation loss of the training rows: without the penalty, without example weights, and without any
    other effect of λ on the training loss. Otherwise λ could lower it without any effect on the model. In the general
    form `valid_loss` must therefore accept batches of `train`. The arguments are those of `PACBayes`.
    """

    risk_of = "train"
