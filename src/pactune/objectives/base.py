"""The interface of an objective: a risk at θ_T plus ζ times the root of a sum along the trajectory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pactune.checks import NOT_NEGATIVE, Rule, check_number
from pactune.errors import SettingError
from pactune.objectives.auto_zeta import AutoZeta
from pactune.problem import Problem
from pactune.trees import Params, clip, detach, leaves, split

__all__ = ["REQUIRED", "MeasuredSummand", "Objective", "PathContext", "check_zeta", "clip"]

Zeta = float | Literal["theory", "auto"] | AutoZeta
REQUIRED: Any = None  # in place of a default: `check_zeta` refuses it with the choices in words


class PathContext(NamedTuple):
    """The inputs of a summand, besides the two gradients.

    Attributes:
        learning_rate: η_t of the inner dynamics.
        factors: the hyperparameters' factors on η_t, by parameter name.
        train_rows: n_T.
        valid_rows: n_V.
        inverse_temperature: τ of the inner dynamics; None if it has none.
    """

    learning_rate: float | Tensor
    factors: Params
    train_rows: int
    valid_rows: int
    inverse_temperature: float | None = None

    def without_graph(self) -> PathContext:
        """Return the same inputs outside of any autograd graph."""
        return self._replace(factors=detach(self.factors))


class MeasuredSummand(NamedTuple):
    """A summand and its derivatives with respect to the two gradients."""

    summand: Tensor
    by_train: Params
    by_valid: Params


class Objective(ABC):
    """J(λ) = E[R(θ_T)] + ζ √(Σ_t E[q_t]), where q_t is a function of the two risks' gradients at θ_t.

    To add one, subclass, write `summand`, and add a row to the conformance table of the tests.

    Attributes:
        zeta: ζ.
        chain_mean: the position of the mean over chains, inside or outside the root.
        has_path: False without a sum along the trajectory.
        uses_valid_gradient: True if q_t depends on ∇R_V.
        compares_default: True if the second gradient is that of the training risk under the default λ0.
        squared_distance: True if q_t is the squared distance of the two gradients.
        uses_step_size: True if q_t depends on the step size.
        risk_of: the rows on which the validation loss of the first term is taken.
        closed: True if `measure` has its derivatives in closed form.
    """

    zeta: Zeta

    chain_mean: Literal["inside", "outside"] = "inside"
    has_path: bool = True
    uses_valid_gradient: bool = True
    compares_default: bool = False
    squared_distance: bool = False
    uses_step_size: bool = False
    risk_of: Literal["train", "valid"] = "valid"
    closed: bool = False

    @abstractmethod
    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return q_t from ∇R_T (penalty included) and ∇R_V; differentiable in both."""

    def measure(self, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True) -> MeasuredSummand:
        """Return q_t and its derivatives with respect to the two gradients, without an autograd graph.

        With `by_valid=False` the derivative with respect to the second gradient may be empty.
        """
        with torch.enable_grad():
            a, b = leaves(train), leaves(valid)
            value = self.summand(a, b, context)
            found = torch.autograd.grad(value, [*a.values(), *b.values()], allow_unused=True)
        return MeasuredSummand(value.detach(), *split(found, a, b))

    def check(self, problem: Problem) -> None:
        """Raise a `SettingError` if the objective does not fit the problem."""

    def default_hyper(self, start: Params) -> Params:
        """Return λ0, for objectives with `compares_default`; `start` is the initial λ."""
        return start

    def theory_zeta(self, learning_rate: float, beta: float) -> float:
        """Return ζ = √(βη/4). With it the objective is the bound, up to terms that do not depend on λ."""
        return math.sqrt(beta * learning_rate / 4)


def check_zeta(zeta: object) -> None:
    """Raise unless ζ is a finite number ≥ 0, "theory" or "auto"."""
    if zeta is None:
        raise SettingError(
            '`zeta` must be given: a finite number ≥ 0, "theory", or "auto", which chooses it by cross-validation; '
            "there is no default, since the best ζ depends on the problem; `tuner.suggest()` shows its scale"
        )
    if isinstance(zeta, AutoZeta) or (isinstance(zeta, str) and zeta in ("theory", "auto")):
        return
    check_number("zeta", zeta, Rule('a finite number ≥ 0, "theory" or "auto"', NOT_NEGATIVE.holds))


def check_bound(name: str, value: object) -> None:
    """Raise unless a clipping norm is None or positive."""
    if value is not None:
        check_number(name, value, Rule("a positive norm or None", lambda norm: norm > 0))
