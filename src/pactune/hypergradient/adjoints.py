"""How a derivative goes back through one step of the dynamics, apart from the training gradient inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from pactune.dynamics.base import Dynamics, Number, Slots, StepAdjoint, StepInputs
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params, leaves, split, zeros_like

__all__ = ["StepPoint", "edge_vjp", "through_step", "vjp"]


class StepPoint(NamedTuple):
    """What a step started from and met.

    Attributes:
        params: θ_t.
        slots: the slots before the step.
        gradient: ∇R_T(θ_t).
        hyper: λ.
        noise: ξ_t.
        numbers: the dynamics' numbers of the step.
    """

    params: Params
    slots: Slots
    gradient: Params
    hyper: Params
    noise: Params | None
    numbers: Mapping[str, Number]


def through_step(
    problem: InnerProblem, dynamics: Dynamics, met: StepPoint, by_params: Params, by_slots: Slots
) -> tuple[Params, StepAdjoint]:
    """Take a derivative with respect to the state after a step back to θ_t, the slots, ∇R_T(θ_t) and λ.

    Closed forms are used where the dynamics and the penalties know them; otherwise autograd goes through the step,
    which is made of operations on single elements. The loss itself is never called.

    Returns:
        The λ-derivative, other than through ∇R_T, and the rest.
    """
    if problem.has_closed_steps:
        with torch.no_grad():
            found = dynamics.pull_back(met.params, met.slots, _inputs(problem, met), by_params, by_slots)
            if found is not None:
                return _penalty_part(problem, met.hyper, found), found
    return _by_autograd(problem, dynamics, met, by_params, by_slots)


def vjp(outputs: list[tuple[Params, Params]], *trees: Params, retain: bool = False) -> list[Params]:
    """Return the vector–Jacobian products of (function, cotangent) pairs with respect to each tree.

    Zeros stand where nothing depends on an input. A function may require a gradient of its own where no input does: a
    loss may hold a module with parameters that nobody trains.
    """
    pairs = [(f[name], c[name]) for f, c in outputs for name in c if f[name].requires_grad]
    inputs = [tensor for tree in trees for tensor in tree.values()]
    if not pairs or not any(tensor.requires_grad for tensor in inputs):
        return [zeros_like(tree) for tree in trees]
    functions, cotangents = zip(*pairs, strict=True)
    return split(torch.autograd.grad(functions, inputs, cotangents, retain_graph=retain, allow_unused=True), *trees)


def edge_vjp(edges: dict[str, GradientEdge], cotangents: Params, *trees: Params) -> list[Params]:
    """Return the vector–Jacobian products of functions known by their place in an autograd graph."""
    inputs = [tensor for tree in trees for tensor in tree.values()]
    if not edges or not inputs:
        return [zeros_like(tree) for tree in trees]
    given = [cotangents[name] for name in edges]
    return split(torch.autograd.grad(list(edges.values()), inputs, given, allow_unused=True), *trees)


def _penalty_part(problem: InnerProblem, hyper: Params, found: StepAdjoint) -> Params:
    if found.penalty_at is None or found.penalty is None:
        return {}
    return problem.penalty_vjp(found.penalty_at, hyper, found.penalty)


def _by_autograd(
    problem: InnerProblem, dynamics: Dynamics, met: StepPoint, by_params: Params, by_slots: Slots
) -> tuple[Params, StepAdjoint]:
    params, gradient, hyper = leaves(met.params), leaves(met.gradient), leaves(met.hyper)
    slots = {slot: leaves(values) for slot, values in met.slots.items()}
    with torch.enable_grad():
        inputs = _inputs(problem, met._replace(params=params, gradient=gradient, hyper=hyper))
        after, slots_after = dynamics.step(params, slots, inputs)
    outputs = [(after, by_params), *((slots_after[slot], values) for slot, values in by_slots.items())]
    by_hyper, by_gradient, to_params, *to_slots = vjp(outputs, hyper, gradient, params, *slots.values())
    return by_hyper, StepAdjoint(by_gradient, to_params, dict(zip(slots, to_slots, strict=True)))


def _inputs(problem: InnerProblem, met: StepPoint) -> StepInputs:
    factors = problem.learning_rates(met.params, met.hyper) if problem.has_learning_rates else {}
    if not problem.has_penalty:
        return StepInputs(met.gradient, None, factors, met.noise, met.numbers)
    return StepInputs(
        met.gradient,
        lambda at: problem.penalty_gradient(at, met.hyper),
        factors,
        met.noise,
        met.numbers,
        lambda at, vector: problem.penalty_product(at, met.hyper, vector),
    )
