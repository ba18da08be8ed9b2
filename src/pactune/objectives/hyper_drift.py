"""How far tuning moves the trajectory: the training gradient under λ minus that under the default λ0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pactune.checks import FINITE, check_number, check_type, is_number
from pactune.errors import SettingError
from pactune.objectives.base import REQUIRED, MeasuredSummand, Objective, PathContext, check_zeta
from pactune.problem import Problem
from pactune.trees import Params, dot, scale, sub

__all__ = ["HyperDrift"]


@dataclass(frozen=True)
class HyperDrift(Objective):
    """J(λ) = E[R_V(θ_T)] + ζ √(Σ_t E‖∇R_T(θ_t; λ) − ∇R_T(θ_t; λ0)‖²).

    The chain on S_T under the default λ0 is a prior that has not seen S_V, so no privacy is needed and the divergence
    of the two chains does not grow with their dimension. With ζ = √(βη/8), β = τ/n_V, the regularizer is √(KL/2n_V),
    and J is the certificate of the validation side, up to terms that do not depend on λ. For weight decay the summand
    is ‖(λ − λ0) ⊙ θ‖², and a step only adds θ² to a sum.

    Choose it when λ is tuned on S_V and the result is to be certified. Use Langevin as the inner dynamics: only there
    is the regularizer a divergence.

    Args:
        zeta: a number ≥ 0, or "theory" for √(βη/8).
        default: λ0: a number for every hyperparameter, tensors by name, or None for the initial λ. Choose it without
            the validation data.
    """

    zeta: float | Literal["theory"] = REQUIRED
    default: float | Mapping[str, Tensor] | None = None

    uses_valid_gradient = False
    compares_default = True
    squared_distance = True
    closed = True

    def __post_init__(self) -> None:
        check_zeta(self.zeta)
        if not is_number(self.zeta) and self.zeta != "theory":
            raise SettingError('`zeta` of HyperDrift must be a number ≥ 0 or "theory"; at λ = λ0 there is no scale')
        if isinstance(self.default, Mapping):
            for name, value in self.default.items():
                check_type(f"default[{name!r}]", value, Tensor, "a tensor")
        else:
            check_number("default", self.default, FINITE, none="for where the tuner starts, or a dict of tensors")

    def check(self, problem: Problem) -> None:
        """Raise if λ changes the noise or the start, which the summand does not measure."""
        if problem.has_learning_rates or problem.has_initial:
            what = "the step size" if problem.has_learning_rates else "the initial parameters"
            raise SettingError(
                f"HyperDrift measures how λ changes the gradient, but here λ changes {what} too; use PACBayes"
            )

    def default_hyper(self, start: Params) -> Params:
        """Return λ0 in the shapes of λ; `start` is the initial λ."""
        if self.default is None:
            return start
        if isinstance(self.default, Mapping):
            missing = [name for name in start if name not in self.default]
            if missing:
                raise SettingError(f"`default` must hold every hyperparameter; it lacks {', '.join(missing)}")
            wrong = [name for name, value in start.items() if not _broadcasts(self.default[name], value)]
            if wrong:
                raise SettingError(
                    f"`default` must have the shapes of the hyperparameters; misshapen: {', '.join(wrong)}"
                )
            return {name: self.default[name].detach().to(value).expand_as(value) for name, value in start.items()}
        number = torch.tensor(self.default, dtype=torch.float64, device="cpu")
        return {name: number.to(value).expand_as(value) for name, value in start.items()}

    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return ‖∇R_T(λ) − ∇R_T(λ0)‖²; the argument `valid` holds the second gradient."""
        difference = sub(train, valid)
        return dot(difference, difference)

    def measure(self, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True) -> MeasuredSummand:
        """Return the summand and its derivatives ±2Δ in closed form."""
        difference = sub(train, valid)
        second = scale(-2.0, difference) if by_valid else {}
        return MeasuredSummand(dot(difference, difference), scale(2.0, difference), second)

    def theory_zeta(self, learning_rate: float, beta: float) -> float:
        """Return √(βη/8). With it ζ times the root is √(KL/2n_V)."""
        return math.sqrt(beta * learning_rate / 8)


def _broadcasts(value: Tensor, like: Tensor) -> bool:
    """Return True if a tensor can be expanded to the shape of another."""
    try:
        value.expand_as(like)
    except RuntimeError:
        return False
    return True
