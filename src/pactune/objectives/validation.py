"""The bare validation risk, Eq. 4, which other methods minimise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pactune.objectives.base import Objective, PathContext
from pactune.trees import Params

__all__ = ["ValidationRisk"]


@dataclass(frozen=True)
class ValidationRisk(Objective):
    """J(λ) = E[R_V(θ_T)] (Equation 4). The baseline; with many hyperparameters it overfits the validation set."""

    zeta = 0.0
    has_path = False
    uses_valid_gradient = False

    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Raise: this objective has no sum along the trajectory."""
        raise NotImplementedError("ValidationRisk has no path term")
