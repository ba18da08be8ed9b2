"""The limit of a prior that has seen no data: the norm of the training gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pactune.objectives.base import REQUIRED, Objective, PathContext, Zeta, check_zeta
from pactune.trees import Params, dot

__all__ = ["Flatness"]


@dataclass(frozen=True)
class Flatness(Objective):
    """J(λ) = E[R_V(θ_T)] + ζ √(Σ_t E‖∇R_T(θ_t)‖²), which favours flat optima (Observation A.2).

    This is the regularizer of Eq. 5 if the privacy parameters of the prior go to 0. It needs no validation gradient.

    Args:
        zeta: a number ≥ 0 or "theory" for √(βη/4).
    """

    zeta: Zeta = REQUIRED

    uses_valid_gradient = False

    def __post_init__(self) -> None:
        check_zeta(self.zeta)

    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return ‖∇R_T‖²."""
        return dot(train, train)
