"""Corollary A.2: the two chains may differ in step size and temperature, and the prior's gradient is clipped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.checks import POSITIVE, check_number
from pactune.objectives.base import REQUIRED, Objective, PathContext, Zeta, check_bound, check_zeta, clip
from pactune.trees import Params

__all__ = ["UnequalSteps"]


@dataclass(frozen=True)
class UnequalSteps(Objective):
    """J(λ) = E[R_V(θ_T)] + ζ √(KL/n_V) with the path KL of two Langevin chains of unequal steps (Corollary A.2).

    The summand, per step, is KL_t/n_V with

        KL_t = τ_V/(4η_V) ‖η_T ∇R_T − η_V clip_γ(∇R_V)‖² + (m/2)(r − log r − 1),   r = τ_V η_T / (τ_T η_V),

    the exact divergence of the step N(θ − η_T ∇R_T, 2η_T/τ_T) from N(θ − η_V clip_γ(∇R_V), 2η_V/τ_V) (the paper lost
    the ½). τ_T is the inverse temperature of the inner dynamics, or n_T if it has none, as in the paper. With
    η_V = η_T and τ_V = τ_T = τ the summand is (τη/4n_V) ‖Δ_t‖², so ζ = 1 is the theory's scale. Choose this objective
    when the private prior demands small steps.

    Args:
        valid_lr: η_V, the step size of the chain on the validation set.
        zeta: a number ≥ 0, or "theory", which is 1 here.
        clip_valid: γ, None for no clipping.
        clip_train: clip ∇R_T too; give the same norm as the `clip` of the inner dynamics.
        valid_inverse_temperature: τ_V; None takes n_V, as the paper and `privacy.DPSGLD` do. Give the τ of the inner
            dynamics for two chains of one temperature: then r = η_T/η_V.
    """

    valid_lr: float
    zeta: Zeta = REQUIRED
    clip_valid: float | None = None
    clip_train: float | None = None
    valid_inverse_temperature: float | None = None

    uses_step_size = True

    def __post_init__(self) -> None:
        check_number("valid_lr", self.valid_lr, POSITIVE)
        check_zeta(self.zeta)
        check_bound("clip_valid", self.clip_valid)
        check_bound("clip_train", self.clip_train)
        if self.valid_inverse_temperature is not None:
            check_number("valid_inverse_temperature", self.valid_inverse_temperature, POSITIVE)

    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return KL_t/n_V."""
        posterior, prior = clip(train, self.clip_train), clip(valid, self.clip_valid)
        terms = [self._tensor_kl(posterior[name], prior[name], context.factors.get(name), context) for name in train]
        return torch.stack(terms).sum() / context.valid_rows

    def _tensor_kl(self, train: Tensor, prior: Tensor, factor: Tensor | None, context: PathContext) -> Tensor:
        eta = context.learning_rate * (train.new_ones(()) if factor is None else factor)
        tau_train = context.inverse_temperature or context.train_rows
        tau_valid = self.valid_inverse_temperature or context.valid_rows
        drift = tau_valid / (4 * self.valid_lr) * (eta * train - self.valid_lr * prior).square().sum()
        ratio = (tau_valid * eta / (tau_train * self.valid_lr)).expand_as(train)
        return drift + 0.5 * (ratio - ratio.log() - 1).sum()

    def theory_zeta(self, learning_rate: float, beta: float) -> float:
        """Return 1: the step sizes are inside the summand."""
        return 1.0
