"""Solvers of the linear system ∇²R_T v = b of implicit differentiation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.checks import NOT_NEGATIVE, POSITIVE, Rule, check_count, check_number
from pactune.dynamics.base import Number
from pactune.errors import GradientError
from pactune.trees import Params, axpy, dot, norm, scale, sub, zeros_like

__all__ = [
    "DAMPING",
    "ConjugateGradient",
    "Identity",
    "LinearSolver",
    "LinearSystem",
    "Neumann",
    "Operator",
    "Solution",
    "check_damping",
]

Operator = Callable[[Params], Params]
DAMPING = Rule("≥ 0 and finite", NOT_NEGATIVE.holds)
RAISES = 30  # how often the damping is raised at most
FACTOR = 10.0  # by which a damping is raised at least
FEW_STEPS = 10  # up to so many steps of conjugate gradients the residual of their recursion is that of the system
LEAST = 1e-5  # the least damping after a raise, relative to the largest curvature that was seen


class LinearSystem(NamedTuple):
    """The system ∇²R_T v = b.

    Attributes:
        hessian: v ↦ ∇²R_T v.
        b: ∇R_V.
        learning_rate: η of the inner dynamics.
        generator: random numbers for a solver that draws some.
        start: a guess of v; None starts at 0.
    """

    hessian: Operator
    b: Params
    learning_rate: Number
    generator: torch.Generator
    start: Params | None = None

    def residual(self, damping: float = 0.0) -> Params:
        """Return b − (∇²R_T + damping·I) v at the start."""
        if self.start is None:
            return self.b
        return sub(self.b, damped(self.hessian, damping)(self.start))

    def from_start(self, correction: Params) -> Params:
        """Return the start plus a correction."""
        return correction if self.start is None else axpy(1.0, correction, self.start)


class Solution(NamedTuple):
    """An approximate solution.

    Attributes:
        value: v.
        products: the number of Hessian products that it took.
        damping: the number on the diagonal of the system that was solved.
        residual: b − ∇²R_T v, without the damping; None if the solver does not know it.
    """

    value: Params
    products: int
    damping: float = 0.0
    residual: Params | None = None


class LinearSolver(ABC):
    """An approximate solution v of ∇²R_T v = b.

    Attributes:
        looks: False if the solver makes the same tensor operations whatever the numbers are, and draws none.
    """

    looks: bool = True

    @abstractmethod
    def solve(self, system: LinearSystem) -> Solution:
        """Return v ≈ (∇²R_T)⁻¹ b; begin at `system.start`."""


@dataclass(frozen=True)
class Identity(LinearSolver):
    """v = αb; with α = η it is T1–T2. From a start v_0 it is one gradient step: v_0 + α(b − ∇²R_T v_0).

    Args:
        alpha: None takes the inner learning rate.
    """

    alpha: float | None = None

    looks = False

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, POSITIVE, none="for the inner learning rate")

    def solve(self, system: LinearSystem) -> Solution:
        """Return αb."""
        alpha = self.alpha if self.alpha is not None else system.learning_rate
        return Solution(system.from_start(scale(alpha, system.residual())), int(system.start is not None))


@dataclass(frozen=True)
class Neumann(LinearSolver):
    """v = α Σ_{j≤steps} (I − α∇²R_T)^j b (Lorraine et al.): steps + 1 steps of unrolled gradient descent at θ_T.

    Args:
        steps: number of Hessian products.
        alpha: None takes the inner learning rate; the series converges when α‖∇²R_T‖ < 2.
    """

    steps: int
    alpha: float | None = None

    looks = False

    def __post_init__(self) -> None:
        check_count("steps", self.steps, 0, words="≥ 0, a whole number")
        check_number("alpha", self.alpha, POSITIVE, none="for the inner learning rate")

    def solve(self, system: LinearSystem) -> Solution:
        """Return the truncated series."""
        alpha = self.alpha if self.alpha is not None else system.learning_rate
        term = total = system.residual()
        for _ in range(self.steps):
            term = axpy(-alpha, system.hessian(term), term)
            total = axpy(1.0, term, total)
        return Solution(system.from_start(scale(alpha, total)), self.steps + int(system.start is not None))


@dataclass(frozen=True)
class ConjugateGradient(LinearSolver):
    """Conjugate gradients on (∇²R_T + damping·I) v = b.

    If the method meets a direction of negative curvature, the Hessian is not positive definite. It then raises the
    damping and starts again, until no curvature that it meets is negative. The column `implicit_damping` of the
    history has the damping in use.

    Args:
        steps: number of Hessian products at most, for every damping that is tried.
        damping: added to the diagonal.
        tolerance: stop at this residual relative to ‖b‖.
    """

    steps: int
    damping: float = 0.0
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        check_count("steps", self.steps, words="≥ 1, a whole number")
        check_damping(self.damping)
        check_number("tolerance", self.tolerance, NOT_NEGATIVE)

    def solve(self, system: LinearSystem) -> Solution:
        """Return the iterate after at most `steps` products.

        Raises:
            GradientError: no damping makes the system positive definite.
        """
        damping, products = float(self.damping), 0
        for _ in range(RAISES):
            found = self._descend(system, damping)
            products += found.products
            if found.negative is None:
                residual = None if found.residual is None else axpy(damping, found.value, found.residual)
                return Solution(found.value, products, damping, residual)
            damping = max(FACTOR * damping, damping - 2 * found.negative, LEAST * found.largest)
            if damping == 0:
                break
        raise GradientError(
            "the training Hessian is zero along ∇R_V at θ_T, so conjugate gradients do not apply; raise `damping`, or "
            "use Truncated or Windowed"
        )

    def _descend(self, system: LinearSystem, damping: float) -> _Descent:
        """Run conjugate gradients at one damping, until the residual is small or a curvature is negative."""
        operator = damped(system.hessian, damping)
        residual = direction = system.residual(damping)
        v, rho, largest = zeros_like(system.b), dot(residual, residual), 0.0
        stop, extra = self.tolerance * self.tolerance * dot(system.b, system.b), int(system.start is not None)
        for i in range(self.steps):
            if bool(rho <= stop):
                return _Descent(system.from_start(v), i + extra, residual=residual if i <= FEW_STEPS else None)
            image = operator(direction)
            curvature, length = dot(direction, image), dot(direction, direction)
            if not bool(curvature.isfinite()):  # training diverged; the caller reports the NaN
                return _Descent(scale(float("nan"), v), i + extra)
            largest = max(largest, float(norm(image) / length.sqrt()))
            if not bool(curvature > 0):
                return _Descent(v, i + 1 + extra, float(curvature / length), largest)
            v, residual, rho, direction = _move(v, residual, rho, direction, image, curvature)
        known = residual if self.steps <= FEW_STEPS else None  # rounding adds up in a long recursion
        return _Descent(system.from_start(v), self.steps + extra, residual=known)


class _Descent(NamedTuple):
    """The end of one run of conjugate gradients.

    Attributes:
        value: the iterate.
        products: the number of Hessian products.
        negative: a Rayleigh quotient of the damped Hessian that is not positive; None if all were positive.
        largest: the largest ‖Hp‖/‖p‖ of all directions p.
        residual: the residual of the damped system; None after many steps.
    """

    value: Params
    products: int
    negative: float | None = None
    largest: float = 0.0
    residual: Params | None = None


def _move(
    v: Params, residual: Params, rho: Tensor, direction: Params, image: Params, curvature: Tensor
) -> tuple[Params, Params, Tensor, Params]:
    """Take one step of conjugate gradients; return v, the residual, its square and the next direction."""
    alpha = rho / curvature
    v, residual = axpy(alpha, direction, v), axpy(-alpha, image, residual)
    after = dot(residual, residual)
    return v, residual, after, axpy(after / rho, direction, residual)


def damped(hessian: Operator, damping: float) -> Operator:
    """Return v ↦ (H + damping·I) v."""
    return hessian if damping == 0 else lambda vector: axpy(damping, vector, hessian(vector))


def check_damping(damping: object, rule: Rule = DAMPING) -> None:
    """Raise unless a damping keeps its rule."""
    check_number("damping", damping, rule)
