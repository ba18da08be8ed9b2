"""Corollary A.2: the two chains may have step sizes of their own, and the prior's gradient is clipped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.checks import POSITIVE, check_number
from pactune.objectives.base import Objective, PathContext, Zeta, check_bound, check_zeta, clip
from pactune.trees import Params

__all__ = ["UnequalSteps"]


@dataclass(frozen=True)
class UnequalSteps(Objective):
    """J(λ) = E[R_V(θ_T)] + ζ √(KL/n_V) with the path KL of two Langevin chains of unequal steps (Corollary A.2).

    The summand, per step, is KL_t/n_V with

        KL_t = n_V/(4η_V) ‖η_T ∇R_T − η_V clip_γ(∇R_V)‖² + (m/2)(r − log r − 1),   r = n_V η_T / (n_T η_V),

    the exact divergence of the two Gaussian steps (the paper lost the ½). With η_V = η_T and n_V = n_T it is
    η/4 ‖Δ_t‖², so ζ = 1 is the theory's scale. Choose it when the private prior demands small steps.

    Args:
        valid_lr: η_V, the step size of the chain on the validation set.
        zeta: a number ≥ 0, or "theory", which is 1 here.
        clip_valid: γ, None for no clipping.
    """

    valid_lr: float
    zeta: Zeta = "theory"
    clip_valid: float | None = None

    uses_step_size = True

    def __post_init__(self) -> None:
        check_number("valid_lr", self.valid_lr, POSITIVE)
        check_zeta(self.zeta)
        check_bound("clip_valid", self.clip_valid)

    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return KL_t/n_V."""
        prior = clip(valid, self.clip_valid)
        terms = [self._tensor_kl(train[name], prior[name], context.factors.get(name), context) for name in train]
        return torch.stack(terms).sum() / context.valid_rows

    def _tensor_kl(self, train: Tensor, prior: Tensor, factor: Tensor | None, context: PathContext) -> Tensor:
        eta = context.learning_rate * (train.new_ones(()) if factor is None else factor)
        rows_valid, rows_train = context.valid_rows, context.train_rows
        drift = rows_valid / (4 * self.valid_lr) * (eta * train - self.valid_lr * prior).square().sum()
        ratio = (rows_valid * eta / (rows_train * self.valid_lr)).expand_as(train)
        return drift + 0.5 * (ratio - ratio.log() - 1).sum()

    def theory_zeta(self, learning_rate: float, beta: float) -> float:
        """Return 1: the step sizes are inside the summand."""
        return 1.0
