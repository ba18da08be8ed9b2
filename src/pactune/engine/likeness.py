"""Whether runs have one structure: the same in all but data, seed, ζ, and the values of θ, λ and the model's buffers.

What is run as one takes everything else from the first run, so it has to be the same in all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from pactune.engine.plan import Job
from pactune.problem import Problem

__all__ = ["alike", "same_structure"]

INNER = frozenset(vars(nn.Module())) - {"training"}  # what every module has


def same_structure(job: Job, other: Job) -> bool:
    """Whether two rounds differ in nothing that running them as one would take from the first."""
    return alike(_structure(job), _structure(other))


def alike(a: object, b: object) -> bool:
    """Whether two things are equal, functions and modules by what they are made of; in doubt they are not.

    >>> def power(p): return lambda x: x ** p
    >>> alike(power(2), power(2)), alike(power(2), power(3))
    (True, False)
    """
    return _alike(a, b, {})


def _alike(a: Any, b: Any, met: dict[tuple[int, int], tuple[Any, Any]]) -> bool:
    if a is b or (id(a), id(b)) in met:  # a pair that is met again is being compared already
        return True
    met[id(a), id(b)] = a, b  # kept alive, so that no other object gets its number
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and torch.equal(a, b)
    parts = _parts(a), _parts(b)
    if None not in parts:
        return _alike(*parts, met)
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(_alike(a[name], b[name], met) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_alike(x, y, met) for x, y in zip(a, b, strict=True))
    try:
        return bool(a == b)
    except (RuntimeError, TypeError, ValueError):  # arrays do not say yes or no
        return False


def _parts(thing: Any) -> tuple[Any, ...] | None:
    """Return what decides how a function, a module or a data class behaves; None for anything else."""
    if isinstance(thing, FunctionType):
        return thing.__code__, _held(thing), thing.__defaults__, thing.__kwdefaults__
    if isinstance(thing, MethodType):
        return thing.__func__, thing.__self__
    if isinstance(thing, partial):
        return thing.func, thing.args, thing.keywords
    if isinstance(thing, nn.Module):
        return _settings(thing), thing._parameters, thing._buffers, thing._modules
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return (vars(thing),)
    return None


def _held(function: FunctionType) -> list[Any]:
    """Return the values that a function took with it from where it was defined."""
    try:
        return [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # one of them is not there yet
        return [object()]


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return a module's own attributes, other than parameters, buffers and modules."""
    return {name: value for name, value in vars(module).items() if name not in INNER}


def _structure(job: Job) -> tuple[Any, ...]:
    plan, problem = job.plan, job.plan.trajectory.problem
    objective = plan.trajectory.objective
    words = {name: value for name, value in vars(objective).items() if name not in ("zeta", "default")}
    trees = (*job.states[0][:1], *job.states[0].slots.values(), job.states[0].buffers, job.hyper)
    return (
        (plan.inner_steps, plan.derivatives, plan.path_stride, plan.risk_estimator, plan.path_estimator, job.phase),
        (plan.trajectory.dynamics, type(objective), words, _fixed(problem), problem.losses()),
        [{name: (value.shape, value.dtype, value.device) for name, value in tree.items()} for tree in trees],
        {state.step for state in job.states},
        (problem.train.rows, problem.valid.rows, job.drawn is None, job.on_step is None),
    )


def _fixed(problem: Problem) -> list[Any]:
    """Return what does not move in the modules: their kinds and settings, frozen parameters, the buffers of λ."""
    inside = set(problem.model.modules())
    modules = dict.fromkeys([*problem.model.modules(), *problem.hyper.modules()])
    return [
        (
            type(module),
            _settings(module),
            {name: p for name, p in module._parameters.items() if p is not None and not p.requires_grad},
            {} if module in inside else dict(module._buffers),
        )
        for module in modules
    ]
