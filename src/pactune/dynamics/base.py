"""What an inner dynamics is: a pure, differentiable step whose noise is an argument."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from pactune.checks import POSITIVE, Rule, check_number, is_number, shown
from pactune.errors import SettingError
from pactune.trees import Params, add, blocks, clip, map_tree, scale, sub, sub_

__all__ = [
    "Dynamics",
    "Number",
    "Schedule",
    "Slots",
    "StepAdjoint",
    "StepInputs",
    "StepSize",
    "check_clip",
    "check_positive",
    "descend",
]

Slots = dict[str, Params]
Schedule = float | Callable[[int], float]
StepSize = float | Params
Number = float | Tensor


class StepInputs(NamedTuple):
    """What a step needs besides the parameters and its own slots.

    Attributes:
        gradient: ∇R_T(θ_t) without the penalty.
        penalty_gradient: the penalty's θ-gradient as a function of θ, None without a penalty.
        factors: factors on the step size by parameter name; a name that is missing has factor 1.
        noise: a standard normal draw ξ_t, for dynamics that want it.
        numbers: what changes with the step count, as `Dynamics.numbers` gives it; tensors where steps are recorded once
            and run many times.
        penalty_product: (θ, v) ↦ ∇²penalty(θ) v, for the way back; None without a penalty.
        donated: whether nobody needs the parameters and the slots any more, so that the step may write into them.
    """

    gradient: Params
    penalty_gradient: Callable[[Params], Params] | None
    factors: Params
    noise: Params | None
    numbers: Mapping[str, Number]
    penalty_product: Callable[[Params, Params], Params] | None = None
    donated: bool = False


class StepAdjoint(NamedTuple):
    """A derivative with respect to the state after a step, taken back to what the step was made of.

    Attributes:
        gradient: with respect to ∇R_T(θ_t).
        params: with respect to θ_t, other than through ∇R_T(θ_t).
        slots: with respect to the slots before the step.
        penalty_at: where the step took the penalty's gradient, None without a penalty.
        penalty: with respect to that gradient.
    """

    gradient: Params
    params: Params
    slots: Slots
    penalty_at: Params | None = None
    penalty: Params | None = None


class Dynamics(ABC):
    """How θ moves. Settings are frozen; what a step remembers lives in named slots of tensors.

    To add one, subclass, write `step`, and add a row to the conformance table of the tests. A step must not look at
    its own count: whatever depends on it (a schedule, a bias correction) comes through `numbers`.
    """

    lr: Schedule

    clip: float | None = None  # the norm to which a step clips its gradient
    differentiable: bool = True
    uses_noise: bool = False
    pull_back_needs_gradient: bool = True  # False where `pull_back` always has a closed form without its value

    def slots(self, params: Params) -> Slots:
        """Return what the dynamics remembers at θ_0."""
        return {}

    @abstractmethod
    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1} and the slots after the step; nothing is changed in place."""

    def pull_back(
        self, params: Params, slots: Slots, inputs: StepInputs, by_params: Params, by_slots: Slots
    ) -> StepAdjoint | None:
        """Take the derivative with respect to the state after a step back through the step, in closed form.

        Args:
            params: θ_t.
            slots: the slots before the step.
            inputs: what the step met, without factors on the step size.
            by_params: the derivative with respect to θ_{t+1}.
            by_slots: the derivative with respect to the slots after the step; a slot that is missing has zeros.

        Returns:
            None where no closed form is known: autograd then goes through `step`.
        """
        return None

    def learning_rate(self, step: int) -> float:
        """Return η_t."""
        if not callable(self.lr):
            return self.lr
        try:
            eta = self.lr(step)
        except Exception as error:  # the schedule is the user's
            raise SettingError(
                f"`lr`: the schedule fails at step {step} with {type(error).__name__}: {error}"
            ) from error
        if not is_number(eta) or not 0 <= eta < math.inf:
            raise SettingError(
                f"`lr` must be a finite number ≥ 0 at every step, its schedule gave {shown(eta)} at {step}"
            )
        return eta

    def numbers(self, step: int) -> dict[str, float]:
        """Return what a step needs that changes with the number of steps since θ_0; `lr` is always among it."""
        return {"lr": self.learning_rate(step)}

    def inverse_temperature_or_none(self) -> float | None:
        """Return τ where the dynamics has a finite one."""
        return None

    def pull_back_form(self) -> Dynamics:
        """Return the dynamics whose step is differentiated in place of this one's: itself, where that is possible."""
        return self


def step_size(eta: Number, factors: Params, name: str) -> Number:
    """Return η_t, times the hyperparameter's factor where there is one."""
    return eta * factors[name] if name in factors else eta


def descend(params: Params, direction: Params, eta: Number, factors: Params) -> Params:
    """Return θ − η d, with the factors of the step size."""
    if not factors:
        return sub(params, scale(eta, direction))
    return {name: p - step_size(eta, factors, name) * direction[name] for name, p in params.items()}


def coupled(params: Params, inputs: StepInputs, bound: float | None = None) -> Params:
    """Return the gradient of the whole training risk, penalty included, clipped to a norm."""
    if inputs.penalty_gradient is None:
        return clip(inputs.gradient, bound)
    return clip(map_tree(lambda g, d: g + d, inputs.gradient, inputs.penalty_gradient(params)), bound)


def decay(params: Params, inputs: StepInputs, eta: Number) -> Params:
    """Return θ' − η ∇penalty(θ'), the decoupled form of Loshchilov and Hutter."""
    if inputs.penalty_gradient is None:
        return params
    if inputs.donated and not inputs.factors:
        penalty = inputs.penalty_gradient(params)
        for names in blocks(params):
            sub_({name: params[name] for name in names}, scale(eta, {name: penalty[name] for name in names}))
        return params
    return descend(params, inputs.penalty_gradient(params), eta, inputs.factors)


def coupled_adjoint(
    by_gradient: Params, by_params: Params, slots: Slots, at: Params, inputs: StepInputs
) -> StepAdjoint:
    """Return the adjoint of a step along ∇R_T + ∇penalty, both taken at `at`, from that of their sum."""
    if inputs.penalty_product is None:
        return StepAdjoint(by_gradient, by_params, slots)
    return StepAdjoint(by_gradient, add(by_params, inputs.penalty_product(at, by_gradient)), slots, at, by_gradient)


def check_clip(value: float | None) -> None:
    """Raise unless a clipping norm is None or positive and finite."""
    if value is not None:
        check_number("clip", value, Rule("a positive finite norm or None", POSITIVE.holds))


def check_positive(name: str, value: Schedule) -> None:
    """Raise unless a number is positive and finite; a schedule is checked where it is used."""
    if not callable(value) or isinstance(value, type):
        check_number(name, value, POSITIVE)
