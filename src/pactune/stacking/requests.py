"""The requests that a run yields between its rounds, and the value of a round."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.rounds.plan import RoundOutcome
from pactune.trees import Params

__all__ = ["EvaluationRequest", "OuterStepRequest", "RoundValue", "ValueRequest"]


class EvaluationRequest(NamedTuple):
    """Asks for the evaluation of a model.

    Attributes:
        problem: the model, its loss and its metrics.
        sources: the data sets, by the prefix of their columns: "train", "valid", "test".
        params: θ.
        buffers: the buffers of the model.
        hyper: λ.
        work: the floating-point operations of the forwards; infinite if they are unknown.
    """

    problem: Problem
    sources: dict[str, Source]
    params: Params
    buffers: Params
    hyper: Params
    work: float = math.inf


class ValueRequest(NamedTuple):
    """Asks for J and its gradient as numbers, which waits for the device.

    Attributes:
        problem: the problem of the run.
        outcome: the outcome of its last round.
        zeta: ζ.
    """

    problem: Problem
    outcome: RoundOutcome
    zeta: float


class RoundValue(NamedTuple):
    """The answer to a `ValueRequest`.

    Attributes:
        risk: the risk at θ_T.
        regularizer: √Y.
        gradient: the λ-gradient of J.
        length: the norm of the gradient.
    """

    risk: float
    regularizer: float
    gradient: Params
    length: float


class OuterStepRequest(NamedTuple):
    """Asks for the step of an outer optimizer.

    Attributes:
        outer: the optimizer of λ. The gradient is in `.grad`.
    """

    outer: torch.optim.Optimizer
