"""Any dynamics with a moving average of its parameters, which is the model that users see."""

from __future__ import annotations

from dataclasses import dataclass

from pactune.checks import Rule, check_number
from pactune.dynamics.base import Dynamics, Schedule, Slots, StepAdjoint, StepInputs
from pactune.errors import SettingError
from pactune.trees import Params, axpy, clone, map_tree, sub

__all__ = ["Averaged"]

SHARE = Rule("a number between 0 and 1", lambda value: 0 < value < 1)


@dataclass(frozen=True)
class Averaged(Dynamics):
    """Move by another dynamics, and keep the average θ̄ ← θ̄ + w (θ − θ̄) with w = max(1 − β, 1/t).

    The first 1/(1 − β) iterates have equal weights; after them, later ones count more. Evaluations, `result.model` and
    callbacks see θ̄, with statistics of BatchNorm that are computed at θ̄ on the training rows: those of the last
    iterates fit another model. Training and the λ-gradient are those of `inner`.

    Choose it where the accuracy jumps from look to look: with a large learning rate, small mini-batches, or a strong
    decay under BatchNorm, which keeps weights short, so that every step turns them far.

    Args:
        inner: the dynamics of the iterates: `SGD`, `Adam` or `Langevin`.
        beta: β; an average over about 1/(1 − β) steps.

    Example:
        >>> import pactune as pt
        >>> dynamics = pt.Averaged(pt.SGD(lr=0.1, momentum=0.9), beta=0.99)
        >>> dynamics.learning_rate(0), dynamics.numbers(0)["average"], round(dynamics.numbers(500)["average"], 4)
        (0.1, 1.0, 0.01)
    """

    inner: Dynamics
    beta: float = 0.995

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Dynamics) or not self.inner.differentiable or isinstance(self.inner, Averaged):
            raise SettingError(f"`inner` must be SGD, Adam or Langevin, got {type(self.inner).__name__}")
        check_number("beta", self.beta, SHARE)

    @property
    def lr(self) -> Schedule:  # type: ignore[override]
        """η of the iterates."""
        return self.inner.lr

    @property
    def clip(self) -> float | None:  # type: ignore[override]
        """The norm to which the iterates' gradient is clipped."""
        return self.inner.clip

    @property
    def uses_noise(self) -> bool:  # type: ignore[override]
        """True if the iterates have noise."""
        return self.inner.uses_noise

    @property
    def applies_prox(self) -> bool:  # type: ignore[override]
        """True if the iterates' step ends with a prox."""
        return self.inner.applies_prox

    def slots(self, params: Params) -> Slots:
        """Return the slots of the iterates, and the average."""
        return {**self.inner.slots(params), "average": clone(params)}

    def numbers(self, step: int) -> dict[str, float]:
        """Return the numbers of the iterates, and the weight of θ_{t+1} in the average."""
        return {**self.inner.numbers(step), "average": max(1 - self.beta, 1 / (step + 1))}

    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1} and the slots with the new average."""
        moved, own = self.inner.step(params, _of_iterates(slots), inputs)
        here = map_tree(lambda value: value.detach(), moved)
        average = axpy(inputs.numbers["average"], sub(here, slots["average"]), slots["average"])
        return moved, {**own, "average": average}

    def average(self, slots: Slots) -> Params:
        """Return the average."""
        return slots["average"]

    def inverse_temperature_or_none(self) -> float | None:
        """Return τ of the iterates."""
        return self.inner.inverse_temperature_or_none()

    @property
    def pull_back_needs_gradient(self) -> bool:  # type: ignore[override]
        """True if autograd may have to go through the step of the iterates."""
        return self.inner.pull_back_needs_gradient

    def pull_back(
        self, params: Params, slots: Slots, inputs: StepInputs, by_params: Params, by_slots: Slots
    ) -> StepAdjoint | None:
        """Return the adjoint of the iterates, which do not depend on the average."""
        return self.inner.pull_back(params, _of_iterates(slots), inputs, by_params, _of_iterates(by_slots))


def _of_iterates(slots: Slots) -> Slots:
    return {name: values for name, values in slots.items() if name != "average"}
