"""The linear system behind dθ/dλ at a fixed point of training, restricted to the support that a proximal step leaves.

At θ = prox(u) with u = θ − η∇F(θ), F the smooth part of the training risk, let J = ∂prox/∂u be diagonal. Where J = 0,
θ does not move with λ. On the support, where J > 0, differentiation gives (Bertrand et al. 2020, 2022)

    A dθ = (−∂²F/∂θ∂λ + J⁻¹ (∂prox/∂λ)/η) dλ,    A = ∇²F + (J⁻¹ − I)/η,

which is symmetric. For the lasso J = 1 on the support, so A is the block of ∇²F that belongs to it. Without a prox the
support is everything and A = ∇²F.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.dynamics.base import Number
from pactune.errors import GradientError
from pactune.hypergradient.adjoints import vjp
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params, add, axpy, leaves, map_tree, mul, scale, zeros_like

__all__ = ["StationarySystem", "stationary_system"]

Operator = Callable[[Params], Params]
COUPLED = 1e-4  # the largest relative difference between J v and the product of its diagonal with v


class StationarySystem(NamedTuple):
    """The linear system A v = b at θ, and how its solution gives the λ-derivative.

    Attributes:
        residual: J⁻¹ (θ − prox(u))/η on the support and (θ − prox(u))/η elsewhere. It vanishes at a fixed point. It is
            ∇F(θ) without a prox, and ∇F(θ) + λ sign(θ) on the support of the lasso.
        restrict: sets a vector to 0 outside the support.
        operator: the product with ∇²F ↦ the product with A, which is 1/η outside the support.
        by_hyper: v ↦ the λ-derivative of ⟨J⁻¹ v, prox(u)⟩/η, for a vector v on the support.
    """

    residual: Params
    restrict: Operator
    operator: Callable[[Operator], Operator]
    by_hyper: Operator


def stationary_system(
    problem: InnerProblem, params: Params, hyper: Params, gradient: Params, size: Number
) -> StationarySystem:
    """Return the linear system at θ.

    Args:
        problem: the problem.
        params: θ.
        hyper: λ.
        gradient: ∇F(θ), the training gradient with its smooth penalties.
        size: η of the fixed-point equation. Every positive number gives the same fixed points.

    Raises:
        GradientError: the prox of an element depends on other elements.
    """
    if not problem.has_prox:
        return StationarySystem(gradient, lambda v: v, lambda hessian: hessian, lambda _: zeros_like(hyper))
    support = _Support(problem, params, hyper, gradient, float(size) or 1.0)  # a schedule may end at 0
    return StationarySystem(support.residual, support.restrict, support.operator, support.by_hyper)


class _Support:
    """The elements that a proximal step of size η leaves free."""

    def __init__(self, problem: InnerProblem, params: Params, hyper: Params, gradient: Params, size: float) -> None:
        sizes, point = dict.fromkeys(params, size), leaves(axpy(-size, gradient, params))
        self._size, self._lambdas = size, leaves(hyper)
        with torch.enable_grad():
            self._moved = problem.prox(point, sizes, self._lambdas)
        slope = self._diagonal(point)
        self._mask = map_tree(lambda j: (j != 0).to(j), slope)
        self._inverse = map_tree(lambda j: torch.where(j != 0, 1 / j, torch.ones_like(j)), slope)
        # (J⁻¹ − I)/η on the support, 1/η elsewhere
        self._rest = map_tree(lambda inverse, mask: (inverse - mask) / size, self._inverse, self._mask)
        with torch.no_grad():
            self.residual = mul(self._inverse, add(gradient, problem.envelope_gradient(point, sizes, hyper)))

    def restrict(self, vector: Params) -> Params:
        return mul(self._mask, vector)

    def operator(self, hessian: Operator) -> Operator:
        return lambda vector: add(self.restrict(hessian(self.restrict(vector))), mul(self._rest, vector))

    def by_hyper(self, vector: Params) -> Params:
        cotangent = scale(1 / self._size, mul(self._inverse, vector))
        return vjp([(self._moved, cotangent)], self._lambdas, retain=True)[0]

    def _diagonal(self, point: Params) -> Params:
        """Return the diagonal of J; raise if J is not diagonal."""
        slope = vjp([(self._moved, map_tree(torch.ones_like, point))], point, retain=True)[0]
        signs = map_tree(_signs, point)
        found = vjp([(self._moved, signs)], point, retain=True)[0]
        for name, value in found.items():
            alone = slope[name] * signs[name]
            if not (torch.equal(value, alone) or torch.allclose(value, alone, COUPLED, COUPLED, equal_nan=True)):
                raise GradientError(
                    f"the `prox` of {name!r} moves an element depending on others, as with a norm of a group, so that "
                    "implicit differentiation does not apply; use Truncated, Windowed or ForwardMode"
                )
        return slope


def _signs(like: Tensor) -> Tensor:
    """Return ±1 in an irregular order."""
    generator = torch.Generator(device="cpu").manual_seed(like.numel())
    drawn = torch.randint(0, 2, like.shape, generator=generator, device="cpu")
    return (2 * drawn - 1).to(like)
