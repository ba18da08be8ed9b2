"""The interface of an inner dynamics: a pure, differentiable step whose noise is an argument."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from pactune.checks import POSITIVE, Rule, check_number, is_number, shown
from pactune.errors import SettingError
from pactune.problem.hooks import StepSizes
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
    """The inputs of a step, besides the parameters and the slots.

    Attributes:
        gradient: ∇R_T(θ_t) without the penalty.
        penalty_gradient: the penalty's θ-gradient as a function of θ, None without a penalty.
        factors: factors on the step size by parameter name; a missing name has factor 1.
        noise: a standard normal draw ξ_t; None if the dynamics uses no noise.
        numbers: the numbers that change with the step count, from `Dynamics.numbers`. They are tensors if an engine
            records the step once and runs it many times.
        penalty_product: (θ, v) ↦ ∇²penalty(θ) v, for `pull_back`; None without a penalty.
        donated: True if nobody needs the parameters and the slots any more, so that the step may write into them.
        prox: (θ, step sizes) ↦ θ after the proximal steps of penalties that are not smooth; None without any.
    """

    gradient: Params
    penalty_gradient: Callable[[Params], Params] | None
    factors: Params
    noise: Params | None
    numbers: Mapping[str, Number]
    penalty_product: Callable[[Params, Params], Params] | None = None
    donated: bool = False
    prox: Callable[[Params, StepSizes], Params] | None = None


class StepAdjoint(NamedTuple):
    """A derivative with respect to the state after a step, pulled back to the inputs of the step.

    Attributes:
        gradient: with respect to ∇R_T(θ_t).
        params: with respect to θ_t, without the part through ∇R_T(θ_t).
        slots: with respect to the slots before the step.
        penalty_at: the parameters at which the step took the penalty's gradient; None without a penalty.
        penalty: with respect to that gradient.
    """

    gradient: Params
    params: Params
    slots: Slots
    penalty_at: Params | None = None
    penalty: Params | None = None


class Dynamics(ABC):
    """How θ moves. The object holds only settings; tensors that a step remembers are in named slots.

    To add one, subclass, write `step`, and add a row to the conformance table of the tests. A step must not read the
    step count: numbers that depend on it (a schedule, a bias correction) come from `numbers`.

    Attributes:
        lr: η, a number or a function of the step.
        clip: the norm to which a step clips its gradient; None clips nothing.
        differentiable: False if the step cannot be differentiated.
        uses_noise: True if the step reads `StepInputs.noise`.
        applies_prox: True if the step ends with `StepInputs.prox`.
        same_in_graph: True if a step makes the same operations inside an autograd graph as outside of it.
        pull_back_needs_gradient: False if `pull_back` always has a closed form that does not read the gradient's value.
    """

    lr: Schedule

    clip: float | None = None
    differentiable: bool = True
    uses_noise: bool = False
    applies_prox: bool = False
    same_in_graph: bool = False
    pull_back_needs_gradient: bool = True

    def slots(self, params: Params) -> Slots:
        """Return the slots at θ_0: tensors that the dynamics remembers from step to step."""
        return {}

    @abstractmethod
    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1} and the slots after the step, without changes in place unless the inputs are donated."""

    def pull_back(
        self, params: Params, slots: Slots, inputs: StepInputs, by_params: Params, by_slots: Slots
    ) -> StepAdjoint | None:
        """Pull a derivative with respect to the state after a step back through the step, in closed form.

        Args:
            params: θ_t.
            slots: the slots before the step.
            inputs: the inputs of the step, without factors on the step size.
            by_params: the derivative with respect to θ_{t+1}.
            by_slots: the derivative with respect to the slots after the step; a missing slot means zeros.

        Returns:
            The derivatives, or None without a closed form: autograd then goes through `step`.
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
        """Return the numbers of a step that change with the number of steps since θ_0; `lr` is always one of them."""
        return {"lr": self.learning_rate(step)}

    def average(self, slots: Slots) -> Params | None:
        """Return the parameters that users see in place of θ; None if they see θ itself."""
        return None

    def inverse_temperature_or_none(self) -> float | None:
        """Return τ; None if the dynamics has no finite τ."""
        return None

    def pull_back_form(self) -> Dynamics:
        """Return the dynamics whose step is differentiated in place of this one; itself if it is differentiable."""
        return self


def step_size(eta: Number, factors: Params, name: str) -> Number:
    """Return η_t times the hyperparameter's factor, if there is one."""
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


def proximal(params: Params, inputs: StepInputs, sizes: Callable[[str], Number]) -> Params:
    """Return the parameters after the proximal step, if there is one.

    A fixed point of the whole step is a minimum of risk plus penalty if each size is the factor with which the step
    multiplies a gradient that stays the same.

    Args:
        params: the parameters after the other parts of the step.
        inputs: the inputs of the step.
        sizes: the step size by parameter name.
    """
    return params if inputs.prox is None else inputs.prox(params, {name: sizes(name) for name in params})


def coupled_adjoint(
    by_gradient: Params, by_params: Params, slots: Slots, at: Params, inputs: StepInputs
) -> StepAdjoint:
    """Return the adjoint of a step along ∇R_T + ∇penalty, given the adjoint of their sum; both are taken at `at`."""
    if inputs.penalty_product is None:
        return StepAdjoint(by_gradient, by_params, slots)
    return StepAdjoint(by_gradient, add(by_params, inputs.penalty_product(at, by_gradient)), slots, at, by_gradient)


def check_clip(value: float | None) -> None:
    """Raise unless a clipping norm is None or positive and finite."""
    if value is not None:
        check_number("clip", value, Rule("a positive finite norm or None", POSITIVE.holds))


def check_positive(name: str, value: Schedule) -> None:
    """Raise unless a number is positive and finite; a schedule is checked when it is called."""
    if not callable(value) or isinstance(value, type):
        check_number(name, value, POSITIVE)
