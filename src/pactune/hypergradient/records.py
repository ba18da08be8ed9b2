"""What passes between trajectory, estimators and engines: states, what a step meets, and what is seen there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge

from pactune.dynamics.base import Number, Slots
from pactune.problem.data import Batch
from pactune.trees import Params

__all__ = ["Adjoint", "GradientPair", "InnerState", "Linear", "Observation", "Record", "StepData", "ValueAndGradient"]


class InnerState(NamedTuple):
    """θ_t with everything the next step depends on."""

    params: Params
    slots: Slots
    buffers: Params
    step: int


class StepData(NamedTuple):
    """The outside world at one inner step.

    Attributes:
        train: the mini-batch S_T^(t).
        valid: the mini-batch S_V^(t).
        noise: ξ_t, for dynamics that want it.
        keys: the seeds of stochastic forwards, None where nothing is stochastic.
        numbers: the dynamics' numbers of this step as tensors, where steps are recorded once and run many times; None
            computes them from the step count.
    """

    train: Batch
    valid: Batch
    noise: Params | None
    keys: tuple[int, int] | None
    numbers: Mapping[str, Number] | None = None


class Linear(NamedTuple):
    """∇R_T(θ_t) with what it can be differentiated by.

    Attributes:
        params: θ_t, as leaves.
        hyper: λ, as leaves where it enters the loss.
        gradient: ∇R_T(θ_t) without the penalty; empty where the way back does not need its value.
        edges: where ∇R_T(θ_t) stands in an autograd graph; empty without one.
        buffers: the buffers after the training forward.
    """

    params: Params
    hyper: Params
    gradient: Params
    edges: dict[str, GradientEdge]
    buffers: Params

    def observation(self) -> Observation:
        """Return what the step itself needs."""
        return Observation(self.gradient, self.buffers)


class Record(NamedTuple):
    """A step that can be replayed: where it started, what it met, λ at that time, and the gradient where it is kept."""

    state: InnerState
    data: StepData
    hyper: Params
    linear: Linear | None = None


class Adjoint(NamedTuple):
    """The derivative of a scalar with respect to the state."""

    params: Params
    slots: Slots


class Observation(NamedTuple):
    """What is seen at θ_t.

    Attributes:
        gradient: ∇R_T without the penalty, which the step uses again.
        buffers: the buffers after the training forward.
        summand: q_t, None when the objective has no path term.
        by_hyper: direct λ-derivative of q_t, None when not asked for.
        by_params: θ-derivative of q_t, None when not asked for.
    """

    gradient: Params
    buffers: Params
    summand: Tensor | None = None
    by_hyper: Params | None = None
    by_params: Params | None = None


class GradientPair(NamedTuple):
    """The two gradients at θ_t, free of penalties and without a graph; the second is empty without a path term."""

    gradient: Params
    second: Params
    buffers: Params


class ValueAndGradient(NamedTuple):
    """The risk at θ_T with its direct derivatives."""

    value: Tensor
    by_params: Params
    by_hyper: Params
