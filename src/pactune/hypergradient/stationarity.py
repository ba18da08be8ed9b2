"""Measure how far θ_T is from a stationary point of the training risk, and if the training gradient jumps near it.

Implicit differentiation is valid at a stationary point where the risk is twice differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pactune.errors import GradientError
from pactune.hypergradient.adjoints import vjp
from pactune.hypergradient.solvers import LinearSystem, Operator, Solution
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params, axpy, detach, dot, leaves, norm, scale, sub, zeros_like

__all__ = ["check_smooth", "concern", "measure", "penalty_gradient", "penalty_product"]

RESIDUAL = 0.1  # the largest relative residual of the linear solve
SHIFT = 0.05  # the largest relative change of the validation risk until training is stationary
DISTANCE = 0.02  # the largest relative distance from θ_T to a stationary point
REACH = 4.0  # training steps on either side of θ_T on which jumps are searched
JUMPS = 0.5  # the largest share of the gradient's change on that stretch that jumps may have
ROUNDING = 32  # times the machine epsilon: a relative change of the gradient that rounding explains
POINTS = 16  # Hessian products with which the smooth part of the change is integrated


def measure(system: LinearSystem, found: Solution, gradient: Params, params: Params) -> Params:
    """Return the numbers of a linear solve ∇²R_T v = b at θ_T, with b = ∇R_V.

    For a quadratic risk with a positive definite H and g = ∇R_T, the distance ‖H⁻¹g‖ to the stationary point is at
    least ‖g‖³/⟨g, Hg⟩.

    Returns:
        implicit_residual: ‖∇²R_T v − b‖/‖b‖, without the damping of a solver.
        train_gradient_norm: ‖∇R_T(θ_T)‖, penalty included.
        implicit_shift: |⟨v, ∇R_T⟩|, the first-order change of R_V until training is stationary.
        implicit_distance: that lower bound, relative to ‖θ_T‖.
    """
    length, slope = norm(system.b), norm(gradient)
    tiny = torch.finfo(length.dtype).tiny
    residual = found.residual if found.residual is not None else sub(system.b, system.hessian(found.value))
    curvature = dot(gradient, system.hessian(gradient)).abs().clamp_min(tiny)
    return {
        "train_gradient_norm": slope,
        "implicit_residual": norm(residual) / length.clamp_min(tiny),
        "implicit_shift": dot(found.value, gradient).abs(),
        "implicit_distance": slope * (slope**2 / curvature) / norm(params).clamp_min(tiny),
    }


def concern(notes: Mapping[str, float | Tensor], risk: float, *, solves: bool = True) -> str | None:
    """Return why an implicit gradient is far off; None if it is not.

    Args:
        notes: the result of `measure`.
        risk: R_V(θ_T).
        solves: True if the solver should leave no residual.
    """
    slope, residual, shift, distance = (
        float(notes[name])
        for name in ("train_gradient_norm", "implicit_residual", "implicit_shift", "implicit_distance")
    )
    if solves and residual > RESIDUAL:
        return (
            f"the linear solve of Implicit leaves a relative residual of {residual:.2g}, above {RESIDUAL}; "
            "use more steps of the solver, less damping, or another solver"
        )
    if shift > SHIFT * abs(risk) or distance > DISTANCE:
        return (
            f"θ_T is far from stationary, so the gradient of Implicit is far off: ‖∇R_T(θ_T)‖ is {slope:.2g}; if "
            f"training went on, θ would move by {distance:.1%} or more (limit {DISTANCE:.0%}) and the risk {risk:.3g} "
            f"would change by about {shift:.2g} (limit {SHIFT:.0%}); use more inner steps, or Truncated or Windowed"
        )
    return None


def check_smooth(
    what: str, gradient_at: Operator, hessian_at: Callable[[Params], Operator], params: Params, step: Params
) -> None:
    """Raise if the gradient of a function jumps on a stretch of several steps around θ_T.

    The change of the gradient from θ_T − 4δ to θ_T + 4δ is compared with the integral of the Hessian times δ. A
    function with abs, max, clamp or a norm at its zero changes by jumps, which its Hessian does not contain. A smooth
    function passes on every stretch.

    Args:
        what: the name of the function, for the message.
        gradient_at: θ ↦ its gradient.
        hessian_at: θ ↦ the product with its Hessian.
        params: θ_T.
        step: δ, a step that training makes near θ_T.

    Raises:
        GradientError: more than half of the change is in jumps.
    """
    step = _measurable(step, params)
    ahead, behind = gradient_at(axpy(REACH, step, params)), gradient_at(axpy(-REACH, step, params))
    change = sub(ahead, behind)
    length, size = float(norm(change)), max(float(norm(ahead)), float(norm(behind)))
    if not length > ROUNDING * torch.finfo(norm(ahead).dtype).eps * size:  # no change, or training diverged
        return
    if _distance(change, scale(2 * REACH, hessian_at(params)(step))) <= JUMPS * length:
        return
    smooth = zeros_like(params)
    for i in range(POINTS):
        place = REACH * (2 * (i + 0.5) / POINTS - 1)
        smooth = axpy(2 * REACH / POINTS, hessian_at(axpy(place, step, params))(step), smooth)
    jumps = _distance(change, smooth) / length
    if jumps > JUMPS:
        raise GradientError(
            f"the gradient of the {what} jumps near θ_T: over a few steps {jumps:.0%} of its change is in no second "
            "derivative, as with abs(), max(), clamp(), relu() or a norm at 0, so implicit differentiation does not "
            "apply; use Truncated or Windowed, or make the term smooth"
        )


def penalty_gradient(problem: InnerProblem, hyper: Params) -> Operator:
    """Return θ ↦ the gradient of the penalty."""
    return lambda params: detach(problem.penalty_gradient(params, hyper))


def penalty_product(problem: InnerProblem, hyper: Params) -> Callable[[Params], Operator]:
    """Return θ ↦ the product with the Hessian of the penalty, by autograd."""

    def at(params: Params) -> Operator:
        inputs = leaves(params)
        with torch.enable_grad():
            gradient = problem.penalty_gradient(inputs, hyper)
        return lambda vector: vjp([(gradient, vector)], inputs, retain=True)[0]

    return at


def _measurable(step: Params, params: Params) -> Params:
    """Lengthen a step until gradients differ by more than rounding; a zero step stays zero."""
    length = norm(step)
    least = norm(params) * torch.finfo(length.dtype).eps ** 0.5
    return scale((least / length).clamp_min(1.0), step) if bool(length > 0) else step


def _distance(a: Params, b: Params) -> float:
    return float(norm(sub(a, b)))
