"""The values that trajectory, estimators and engines exchange: states, the data of a step, and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from pactune.dynamics.base import Number, Slots
from pactune.nested import tensors_in
from pactune.problem.data import Batch
from pactune.trees import Params, map_tree

__all__ = [
    "MOST_NUMBERS",
    "Adjoint",
    "EstimatorInputs",
    "GradientPair",
    "InnerState",
    "LinearizedGradient",
    "Observation",
    "StepData",
    "StepRecord",
    "ValueAndGradient",
]

MOST_NUMBERS = 2**21  # of θ and of the training rows, up to which a step is small


class InnerState(NamedTuple):
    """θ_t with everything the next step depends on.

    Attributes:
        params: θ_t.
        slots: the tensors that the dynamics remembers, such as a momentum.
        buffers: the model's buffers.
        step: the number of steps since θ_0.
    """

    params: Params
    slots: Slots
    buffers: Params
    step: int


class StepData(NamedTuple):
    """The data of one inner step: mini-batches and randomness.

    Attributes:
        train: the mini-batch S_T^(t).
        valid: the mini-batch S_V^(t).
        noise: ξ_t; None if the dynamics uses no noise.
        keys: the seeds of the training and the validation forward; None if no forward draws random numbers.
        numbers: the dynamics' numbers of this step as tensors. Engines set them because they record a step once and run
            it many times. None computes the numbers from the step count.
    """

    train: Batch
    valid: Batch
    noise: Params | None
    keys: tuple[int, int] | None
    numbers: Mapping[str, Number] | None = None


class EstimatorInputs(NamedTuple):
    """Inputs of an estimator besides the steps of its chain. Fresh mini-batches have an order of their own.

    Attributes:
        memory: the tensors that the estimator kept at the end of the last round; empty in the first round.
        fresh: (i, count) ↦ the i-th of the round's `count` fresh training mini-batches, and the seed of its forward.
        generator: a name ↦ random numbers as a function of the seed, the round and the chain.
        risk_batches: the rows on which the risk at θ_T is computed. They can be iterated several times.
        round_index: the number of rounds of the run before this one.
    """

    memory: Params
    fresh: Callable[[int, int], tuple[Batch, int | None]]
    generator: Callable[[str], torch.Generator]
    risk_batches: Iterable[Batch]
    round_index: int = 0


class LinearizedGradient(NamedTuple):
    """∇R_T(θ_t), ready to be differentiated.

    Attributes:
        params: θ_t, as leaves.
        hyper: λ, as leaves if it enters the loss.
        gradient: ∇R_T(θ_t) without the penalty; empty if the pull-back does not need its value.
        edges: the positions of ∇R_T(θ_t) in an autograd graph; empty without a graph.
        buffers: the buffers after the training forward.
    """

    params: Params
    hyper: Params
    gradient: Params
    edges: dict[str, GradientEdge]
    buffers: Params

    def observation(self) -> Observation:
        """Return the gradient and the buffers, which the step itself needs."""
        return Observation(self.gradient, self.buffers)


class StepRecord(NamedTuple):
    """A step that can be replayed.

    Attributes:
        state: the state before the step.
        data: the data of the step.
        hyper: λ at the step.
        linearized: the training gradient, if it is kept.
    """

    state: InnerState
    data: StepData
    hyper: Params
    linearized: LinearizedGradient | None = None

    @property
    def numbers(self) -> int:
        """How many numbers θ and the training rows have."""
        return sum(tensor.numel() for tensor in (*self.state.params.values(), *tensors_in(self.data.train.data)))


class Adjoint(NamedTuple):
    """The derivative of a scalar with respect to the state."""

    params: Params
    slots: Slots


class Observation(NamedTuple):
    """The gradient and the measurement at θ_t.

    Attributes:
        gradient: ∇R_T without the penalty. The step uses it again.
        buffers: the buffers after the training forward.
        summand: q_t; None if it is not measured.
        by_hyper: the direct λ-derivative of q_t; None if it was not requested.
        by_params: the θ-derivative of q_t; None if it was not requested.
    """

    gradient: Params
    buffers: Params
    summand: Tensor | None = None
    by_hyper: Params | None = None
    by_params: Params | None = None


class GradientPair(NamedTuple):
    """The two gradients at θ_t, without penalties and without a graph.

    Attributes:
        gradient: ∇R_T.
        reference: the gradient with which the objective compares it: ∇R_V, or ∇R_T under the default λ0. Empty without
            a path term.
        buffers: the buffers after the training forward.
    """

    gradient: Params
    reference: Params
    buffers: Params


class ValueAndGradient(NamedTuple):
    """The risk at θ_T with its direct derivatives."""

    value: Tensor
    by_params: Params
    by_hyper: Params

    def mean_with(self, part: ValueAndGradient, share: float) -> ValueAndGradient:
        """Return the mean with a further part that has this share of all rows."""
        trees = zip(({"": self.value}, *self[1:]), ({"": part.value}, *part[1:]), strict=True)
        value, by_params, by_hyper = (map_tree(lambda a, b: torch.lerp(a, b, share), *pair) for pair in trees)
        return ValueAndGradient(value[""], by_params, by_hyper)
