"""The requests that a run yields between its rounds, and the value of a round."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.rounds.plan import RoundOutcome
from pactune.trees import Params

__all__ = ["EvaluationRequest", "OuterStepRequest", "RoundValue", "ValueRequest"]


class EvaluationRequest(NamedTuple):
    """The models of a run, as they stand, are to be evaluated.

    Attributes:
        problem: the model and how it is judged.
        sources: data sets by the beginning of their columns' names.
    """

    problem: Problem
    sources: dict[str, Source]


class ValueRequest(NamedTuple):
    """The numbers of an outcome are wanted, at ζ.

    Attributes:
        problem: of the run.
        outcome: of its last round.
        zeta: ζ.
    """

    problem: Problem
    outcome: RoundOutcome
    zeta: float


class RoundValue(NamedTuple):
    """The numbers of an outcome.

    Attributes:
        risk: of the objective.
        regularizer: √Y.
        gradient: the λ-gradient of J.
        length: its norm.
    """

    risk: float
    regularizer: float
    gradient: Params
    length: float


class OuterStepRequest(NamedTuple):
    """λ is to move.

    Attributes:
        outer: the optimizer of λ, which finds its gradient in `.grad`.
    """

    outer: torch.optim.Optimizer
