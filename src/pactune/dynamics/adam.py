"""Adam, with the penalty decoupled by default (AdamW)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.dynamics.base import Dynamics, Schedule, Slots, StepInputs, check_positive, coupled, decay, step_size
from pactune.errors import SettingError
from pactune.trees import Params, map_tree, zeros_like

__all__ = ["Adam"]


@dataclass(frozen=True)
class Adam(Dynamics):
    """Adam (Kingma and Ba): the same numbers as `torch.optim.Adam`.

    Args:
        lr: η, a number or a function of the step.
        betas: decay of the two moving averages.
        eps: added to the root of the second one.
        decoupled: θ ← θ' − η ∇penalty(θ') after the Adam step; False adds the penalty to the gradient.
    """

    lr: Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled: bool = True

    def __post_init__(self) -> None:
        check_positive("lr", self.lr)
        check_positive("eps", self.eps)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise SettingError(f"`betas` must be two numbers in [0, 1), got {self.betas}")

    def slots(self, params: Params) -> Slots:
        """Return the two moving averages, both 0."""
        return {"first": zeros_like(params), "second": zeros_like(params)}

    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1} and the moving averages after the step."""
        eta, count = self.learning_rate(inputs.step), inputs.step + 1
        beta1, beta2 = self.betas
        gradient = inputs.gradient if self.decoupled else coupled(params, inputs)
        first = map_tree(lambda m, g: torch.lerp(m, g, 1 - beta1), slots["first"], gradient)
        second = map_tree(lambda v, g: (v * beta2).addcmul(g, g, value=1 - beta2), slots["second"], gradient)
        correction1, correction2 = 1 - beta1**count, (1 - beta2**count) ** 0.5
        moved = {}
        for name, p in params.items():
            size = step_size(eta, inputs.factors, name) / correction1
            denominator = _root(second[name]) / correction2 + self.eps
            moved[name] = p - size * (first[name] / denominator)
        return (decay(moved, inputs, eta) if self.decoupled else moved), {"first": first, "second": second}


def _root(v: Tensor) -> Tensor:
    """Return √v with derivative 0 at v = 0.

    A weight behind an input that is always 0 has gradient 0 and v = 0; there the moving average in the numerator
    is 0 too, so the derivative of the step through √v is 0 and not the 0·∞ of autograd.
    """
    if not v.requires_grad:
        return v.sqrt()
    zero = v == 0
    return torch.where(zero, v, v.masked_fill(zero, 1.0).sqrt())
