"""What an objective is: a risk at θ_T plus ζ times the root of a sum along the trajectory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pactune.checks import NOT_NEGATIVE, Rule, check_number
from pactune.objectives.auto_zeta import AutoZeta
from pactune.problem import Problem
from pactune.trees import Params, clip, leaves

__all__ = ["MeasuredSummand", "Objective", "PathContext", "check_zeta", "clip"]

Zeta = float | Literal["theory", "auto"] | AutoZeta


class PathContext(NamedTuple):
    """What a summand may need besides the two gradients.

    Attributes:
        learning_rate: η_t of the inner dynamics.
        factors: hyperparameters' factors on it, by parameter name.
        train_rows: n_T.
        valid_rows: n_V.
        inverse_temperature: τ of the inner dynamics, None where it has none.
    """

    learning_rate: float | Tensor
    factors: Params
    train_rows: int
    valid_rows: int
    inverse_temperature: float | None = None


class MeasuredSummand(NamedTuple):
    """A summand and its derivatives with respect to the two gradients it is made of."""

    summand: Tensor
    by_train: Params
    by_valid: Params


class Objective(ABC):
    """J(λ) = E[R(θ_T)] + ζ √(Σ_t E[q_t]), where q_t is a summand of the two risks' gradients at θ_t.

    To add one, subclass, write `summand`, and add a row to the conformance table of the tests.
    """

    zeta: Zeta

    chain_mean: Literal["inside", "outside"] = "inside"
    has_path: bool = True
    uses_valid_gradient: bool = True
    compares_default: bool = False  # the second gradient is that of the training risk under the default λ0
    uses_step_size: bool = False
    risk_of: Literal["train", "valid"] = "valid"  # the rows on which the loss of the first term is taken
    closed: bool = False  # `measure` knows its derivatives in closed form

    @abstractmethod
    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return q_t from ∇R_T (penalty included) and ∇R_V; differentiable in both."""

    def measure(self, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True) -> MeasuredSummand:
        """Return q_t and its derivatives with respect to the two gradients, without a graph behind them.

        With `by_valid=False` the second derivative may be left empty.
        """
        with torch.enable_grad():
            a, b = leaves(train), leaves(valid)
            value = self.summand(a, b, context)
            found = torch.autograd.grad(value, [*a.values(), *b.values()], allow_unused=True)
        parts = [
            torch.zeros_like(like) if g is None else g
            for like, g in zip([*a.values(), *b.values()], found, strict=True)
        ]
        return MeasuredSummand(
            value.detach(), dict(zip(a, parts[: len(a)], strict=True)), dict(zip(b, parts[len(a) :], strict=True))
        )

    def check(self, problem: Problem) -> None:
        """Raise a `SettingError` where the objective does not fit the problem."""

    def default_hyper(self, start: Params) -> Params:
        """Return the λ0 with which `compares_default` compares, given where λ started."""
        return start

    def theory_zeta(self, learning_rate: float, beta: float) -> float:
        """Return ζ = √(βη/4), with which the objective is the bound up to terms free of λ."""
        return math.sqrt(beta * learning_rate / 4)


def check_zeta(zeta: object) -> None:
    """Raise unless ζ is a finite number ≥ 0, "theory" or "auto"."""
    if isinstance(zeta, AutoZeta) or (isinstance(zeta, str) and zeta in ("theory", "auto")):
        return
    check_number("zeta", zeta, Rule('a finite number ≥ 0, "theory" or "auto"', NOT_NEGATIVE.holds))


def check_bound(name: str, value: object) -> None:
    """Raise unless a clipping norm is None or positive."""
    if value is not None:
        check_number(name, value, Rule("a positive norm or None", lambda norm: norm > 0))
