"""Pull a derivative back through one step of the dynamics, except for the training gradient inside the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from pactune.dynamics.base import Dynamics, Number, Slots, StepAdjoint, StepInputs
from pactune.hypergradient.gradients import backward_pass
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params, leaves, split, zeros_like

__all__ = ["StepArguments", "edge_vjp", "pull_back_dynamics", "pull_back_initial", "step_inputs", "vjp"]


class StepArguments(NamedTuple):
    """The arguments of one step of the dynamics.

    Attributes:
        params: θ_t.
        slots: the slots before the step.
        gradient: ∇R_T(θ_t).
        hyper: λ.
        noise: ξ_t.
        numbers: the dynamics' numbers at this step.
    """

    params: Params
    slots: Slots
    gradient: Params
    hyper: Params
    noise: Params | None
    numbers: Mapping[str, Number]


def pull_back_dynamics(
    problem: InnerProblem, dynamics: Dynamics, arguments: StepArguments, by_params: Params, by_slots: Slots
) -> tuple[Params, StepAdjoint]:
    """Take a derivative with respect to the state after a step back to θ_t, the slots, ∇R_T(θ_t) and λ.

    The function uses the closed forms of the dynamics and the penalties if they exist. Otherwise autograd goes through
    the step, which consists of elementwise operations. The function never calls the loss.

    Returns:
        The λ-derivative without its part through ∇R_T, and the other derivatives.
    """
    if problem.has_closed_steps:
        with torch.no_grad():
            inputs = step_inputs(problem, arguments)
            found = dynamics.pull_back(arguments.params, arguments.slots, inputs, by_params, by_slots)
            if found is not None:
                return _penalty_derivative(problem, arguments.hyper, found), found
    return _by_autograd(problem, dynamics, arguments, by_params, by_slots)


def vjp(outputs: list[tuple[Params, Params]], *trees: Params, retain: bool = False) -> list[Params]:
    """Return the vector–Jacobian products of (function, cotangent) pairs with respect to each tree.

    The product is zero for an input on which no function depends. A function may require a gradient even if no input
    does: a loss may hold a module with parameters that nobody trains.
    """
    pairs = [(f[name], c[name]) for f, c in outputs for name in c if f[name].requires_grad]
    inputs = [tensor for tree in trees for tensor in tree.values()]
    if not pairs or not any(tensor.requires_grad for tensor in inputs):
        return [zeros_like(tree) for tree in trees]
    functions, cotangents = zip(*pairs, strict=True)
    return split(backward_pass(functions, inputs, cotangents, retain=retain), *trees)


def pull_back_initial(problem: InnerProblem, drawn: Params, hyper: Params, by_params: Params) -> Params:
    """Pull an adjoint of θ_0 back to λ; here θ_0 is a function of λ."""
    lambdas = leaves(hyper)
    with torch.enable_grad():
        start = problem.initial(drawn, lambdas)
    return vjp([(start, by_params)], lambdas)[0]


def edge_vjp(edges: dict[str, GradientEdge], cotangents: Params, *trees: Params) -> list[Params]:
    """Return the vector–Jacobian products of functions that are given by their edges in an autograd graph."""
    inputs = [tensor for tree in trees for tensor in tree.values()]
    if not edges or not inputs:
        return [zeros_like(tree) for tree in trees]
    given = [cotangents[name] for name in edges]
    return split(backward_pass(list(edges.values()), inputs, given), *trees)


def _penalty_derivative(problem: InnerProblem, hyper: Params, found: StepAdjoint) -> Params:
    if found.penalty_at is None or found.penalty is None:
        return {}
    return problem.penalty_vjp(found.penalty_at, hyper, found.penalty)


def _by_autograd(
    problem: InnerProblem, dynamics: Dynamics, arguments: StepArguments, by_params: Params, by_slots: Slots
) -> tuple[Params, StepAdjoint]:
    params, gradient, hyper = leaves(arguments.params), leaves(arguments.gradient), leaves(arguments.hyper)
    slots = {slot: leaves(values) for slot, values in arguments.slots.items()}
    with torch.enable_grad():
        inputs = step_inputs(problem, arguments._replace(params=params, gradient=gradient, hyper=hyper))
        after, slots_after = dynamics.step(params, slots, inputs)
    outputs = [(after, by_params), *((slots_after[slot], values) for slot, values in by_slots.items())]
    by_hyper, by_gradient, to_params, *to_slots = vjp(outputs, hyper, gradient, params, *slots.values())
    return by_hyper, StepAdjoint(by_gradient, to_params, dict(zip(slots, to_slots, strict=True)))


def step_inputs(problem: InnerProblem, arguments: StepArguments, *, donated: bool = False) -> StepInputs:
    """Return the inputs of a step, as functions of θ and λ where the dynamics chooses the place."""
    hyper = arguments.hyper
    return StepInputs(
        arguments.gradient,
        (lambda at: problem.penalty_gradient(at, hyper)) if problem.has_penalty else None,
        problem.learning_rates(arguments.params, hyper) if problem.has_learning_rates else {},
        arguments.noise,
        arguments.numbers,
        (lambda at, vector: problem.penalty_product(at, hyper, vector)) if problem.has_penalty else None,
        donated,
        (lambda at, sizes: problem.prox(at, sizes, hyper)) if problem.has_prox else None,
    )
