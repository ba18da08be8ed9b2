"""Langevin dynamics: gradient steps with Gaussian noise, the dynamics of the theory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pactune.checks import Rule, check_number
from pactune.dynamics.base import (
    Dynamics,
    Schedule,
    Slots,
    StepAdjoint,
    StepInputs,
    check_clip,
    coupled,
    coupled_adjoint,
    descend,
    step_size,
)
from pactune.dynamics.base import check_positive as _check_positive
from pactune.trees import Params, scale

__all__ = ["Langevin"]

ANY_POSITIVE = Rule("positive (∞ for no noise)", lambda value: value > 0)


@dataclass(frozen=True)
class Langevin(Dynamics):
    """θ ← θ − η_t ∇R_T(θ) + √(2η_t/τ) ξ_t with ξ_t standard normal (Welling and Teh).

    Full-batch Langevin dynamics when the problem has no `batch_size`, SGLD when it has one. With τ = ∞ it is the
    gradient step.

    Args:
        lr: η_t, a number or a function of the step.
        inverse_temperature: τ, finite for noise; the β of the theory is τ/n, with n the rows of the bound's sample.
        clip: step along clip_γ(∇R_T), the gradient clipped to this norm, penalty included; None clips nothing. With
            the same `clip_train`, an objective compares the gradients that the steps use.
    """

    lr: Schedule
    inverse_temperature: float
    clip: float | None = None

    uses_noise = True
    same_in_graph = True

    @property
    def pull_back_needs_gradient(self) -> bool:  # type: ignore[override]
        """True if autograd has to go through the step."""
        return self.clip is not None

    def __post_init__(self) -> None:
        _check_positive("lr", self.lr)
        check_clip(self.clip)
        check_number("inverse_temperature", self.inverse_temperature, ANY_POSITIVE)

    def inverse_temperature_or_none(self) -> float | None:
        """Return τ; None if it is infinite."""
        return self.inverse_temperature if math.isfinite(self.inverse_temperature) else None

    def numbers(self, step: int) -> dict[str, float]:
        """Return η_t, and the standard deviation of the noise."""
        eta = self.learning_rate(step)
        return {"lr": eta, "noise": (2 / self.inverse_temperature * eta) ** 0.5}

    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1}."""
        eta = inputs.numbers["lr"]
        moved = descend(params, coupled(params, inputs, self.clip), eta, inputs.factors)
        if inputs.noise is None or math.isinf(self.inverse_temperature):
            return moved, slots
        spread, factors = inputs.numbers["noise"], {name: f**0.5 for name, f in inputs.factors.items()}
        return {name: p + step_size(spread, factors, name) * inputs.noise[name] for name, p in moved.items()}, slots

    def pull_back(
        self, params: Params, slots: Slots, inputs: StepInputs, by_params: Params, by_slots: Slots
    ) -> StepAdjoint | None:
        """Return the adjoint in closed form, or None with a clip. The noise does not change it."""
        if self.clip is not None:
            return None
        return coupled_adjoint(scale(-inputs.numbers["lr"], by_params), by_params, {}, params, inputs)
