"""Stochastic gradient descent, with heavy-ball or Nesterov momentum."""

from __future__ import annotations

from dataclasses import dataclass

from pactune.checks import BELOW_ONE, check_flag, check_number
from pactune.dynamics.base import (
    Dynamics,
    Schedule,
    Slots,
    StepAdjoint,
    StepInputs,
    check_clip,
    check_positive,
    coupled,
    coupled_adjoint,
    decay,
    descend,
    proximal,
    step_size,
)
from pactune.errors import SettingError
from pactune.trees import Params, axpy, clip, scale, zeros_like

__all__ = ["SGD"]


@dataclass(frozen=True)
class SGD(Dynamics):
    """θ ← θ − η b, where b ← μ b + ∇R_T(θ); the same numbers as `torch.optim.SGD`.

    Penalties with a `prox` act after the step, with the size η Σ_{s≤t} μ^s: the sum of the weights of all gradients in
    the step. So with momentum too, training stops at a minimum of risk plus penalty. Without momentum this is proximal
    gradient descent (ISTA).

    Args:
        lr: η, a number or a function of the step.
        momentum: μ in [0, 1).
        nesterov: step along ∇R_T + μ b instead of b.
        decoupled: keep the penalty out of the momentum and apply it after the step.
        clip: clip the gradient to this norm before it enters the step; None clips nothing. The penalty is part of it
            unless `decoupled`.
    """

    lr: Schedule
    momentum: float = 0.0
    nesterov: bool = False
    decoupled: bool = False
    clip: float | None = None

    applies_prox = True
    same_in_graph = True

    def __post_init__(self) -> None:
        check_positive("lr", self.lr)
        check_clip(self.clip)
        check_number("momentum", self.momentum, BELOW_ONE)
        check_flag("nesterov", self.nesterov)
        check_flag("decoupled", self.decoupled)
        if self.nesterov and self.momentum == 0:
            raise SettingError("`nesterov=True` needs a positive `momentum`")

    @property
    def pull_back_needs_gradient(self) -> bool:  # type: ignore[override]
        """True if autograd may have to go through the step."""
        return self.decoupled or self.clip is not None

    def slots(self, params: Params) -> Slots:
        """Return the momentum buffer b_0 = 0."""
        return {"momentum": zeros_like(params)} if self.momentum else {}

    def numbers(self, step: int) -> dict[str, float]:
        """Return η_t, and with momentum η_t times the sum of the weights of all gradients in b."""
        eta, found = self.learning_rate(step), 1 - self.momentum ** (step + 1)
        return {"lr": eta, "total": eta * found / (1 - self.momentum)} if self.momentum else {"lr": eta}

    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1} and b_{t+1}."""
        eta = inputs.numbers["lr"]
        gradient = clip(inputs.gradient, self.clip) if self.decoupled else coupled(params, inputs, self.clip)
        direction = gradient
        if self.momentum:
            buffer = axpy(self.momentum, slots["momentum"], gradient)
            slots = {"momentum": buffer}
            direction = axpy(self.momentum, buffer, gradient) if self.nesterov else buffer
        moved = descend(params, direction, eta, inputs.factors)
        moved, total = decay(moved, inputs, eta) if self.decoupled else moved, inputs.numbers.get("total", eta)
        return proximal(moved, inputs, lambda name: step_size(total, inputs.factors, name)), slots

    def pull_back(
        self, params: Params, slots: Slots, inputs: StepInputs, by_params: Params, by_slots: Slots
    ) -> StepAdjoint | None:
        """Return the adjoint in closed form, or None with a decoupled penalty or a clip."""
        if self.clip is not None or (self.decoupled and inputs.penalty_gradient is not None):
            return None
        by_gradient, before = scale(-inputs.numbers["lr"], by_params), Slots()
        if self.momentum:
            by_buffer = scale(self.momentum, by_gradient) if self.nesterov else by_gradient
            if "momentum" in by_slots:
                by_buffer = axpy(1.0, by_slots["momentum"], by_buffer)
            before = {"momentum": scale(self.momentum, by_buffer)}
            by_gradient = axpy(1.0, by_buffer, by_gradient) if self.nesterov else by_buffer
        return coupled_adjoint(by_gradient, by_params, before, params, inputs)
