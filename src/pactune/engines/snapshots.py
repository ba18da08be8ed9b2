"""Whether runs have one structure: the same in all but data, seed, ζ, and the values of θ, λ and the model's buffers.

What is run as one takes everything else from the first run, and what is recorded keeps it as it was, so it has to be
the same in all runs and has to stay so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pactune.problem import Problem

__all__ = ["ChangeDetector", "alike", "equal", "fixed_parts"]

INNER = frozenset(vars(nn.Module())) - {"training"}  # what every module has
LEAVES = {int, float, str, bool, type(None), Tensor, nn.Parameter, CodeType, type, ModuleType}  # most of what is met
PLAIN = (int, float, str, bool, type(None))
MOST_NODES = 5000  # of one snapshot; a loss may hold a whole application, of which the rest is kept by reference


class _Node(NamedTuple):
    """Something that is made of parts; what is met a second time has its number instead."""

    kind: type
    parts: tuple[Any, ...]


class _Reference:
    """An object itself, whatever it is made of."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def fixed_parts(problem: Problem) -> object:
    """Return all that a problem's risks depend on beside θ, λ, buffers and data, as it is now.

    Kinds and settings of the modules, frozen parameters, the buffers of λ, and the losses with what they hold. Tensors
    are kept by reference: one that is written into stays the same, one that is replaced does not. The snapshot cannot
    see everything that Python code may read; engines that rely on it also compare numbers.
    """
    inside = set(problem.model.modules())
    modules = [
        (
            type(module),
            None if type(module).__module__.startswith("torch.") else type(module).forward,
            _settings(module),
            {name: p for name, p in module._parameters.items() if p is not None and not p.requires_grad},
            {} if module in inside else dict(module._buffers),
        )
        for module in dict.fromkeys([*problem.model.modules(), *problem.hyper.modules()])
    ]
    return snapshot((modules, problem.losses()))


class ChangeDetector:
    """Notices that what a problem's risks depend on has changed since its steps were recorded."""

    def __init__(self) -> None:
        self._first: WeakKeyDictionary[Problem, object] = WeakKeyDictionary()

    def run(self, step: Callable[[], object], problems: Iterable[Problem]) -> list[Problem]:
        """Run a step; return the problems that differ after it from how they were before the first one."""
        problems = list(problems)
        for problem in problems:
            if problem not in self._first:
                self._first[problem] = fixed_parts(problem)
        step()
        return [problem for problem in problems if not equal(fixed_parts(problem), self._first[problem])]


def alike(a: object, b: object) -> bool:
    """Whether two things are equal, functions and modules by what they are made of; in doubt they are not.

    >>> def power(p): return lambda x: x ** p
    >>> alike(power(2), power(2)), alike(power(2), power(3))
    (True, False)
    """
    return equal(snapshot(a), snapshot(b))


def snapshot(thing: object) -> object:
    """Return a thing as a tree of what it is made of now; what it cannot look into is a leaf, by reference."""
    return _snapshot(thing, {})


def _snapshot(thing: Any, met: dict[int, tuple[int, Any]]) -> Any:
    parts = _parts(thing)
    if parts is None or len(met) >= MOST_NODES:
        return thing
    if id(thing) in met:
        return _Node(type(thing), (met[id(thing)][0],))
    if not isinstance(thing, tuple):  # which can hold itself only by way of something else
        met[id(thing)] = len(met), thing  # kept alive, so that no other object gets its number
    return _Node(type(thing), tuple(_snapshot(part, met) for part in parts))


def _parts(thing: Any) -> tuple[Any, ...] | None:
    """Return what decides how something behaves, None for what has no parts."""
    if type(thing) in LEAVES:
        return None
    if isinstance(thing, (list, tuple)):
        return tuple(thing)
    if isinstance(thing, dict):
        return (*thing, *thing.values())
    if isinstance(thing, FunctionType):
        return thing.__code__, _held(thing), thing.__defaults__, thing.__kwdefaults__, _plain_globals(thing)
    if isinstance(thing, MethodType):
        return thing.__func__, thing.__self__
    if isinstance(thing, partial):
        return thing.func, thing.args, thing.keywords
    if isinstance(thing, nn.Module):
        return _settings(thing), thing._parameters, thing._buffers, thing._modules
    if isinstance(thing, type) or not hasattr(thing, "__dict__"):
        return None
    if dataclasses.is_dataclass(thing):
        return (vars(thing),)
    return _Reference(thing), vars(thing), _plain_values(vars(type(thing)))  # two such objects are never alike


def _plain_globals(function: FunctionType) -> dict[str, Any]:
    """Return the numbers and texts among the global variables that a function names."""
    return _plain_values({name: function.__globals__.get(name) for name in function.__code__.co_names})


def _plain_values(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in namespace.items() if type(value) in PLAIN and not name.startswith("__")}


def _held(function: FunctionType) -> list[Any]:
    """Return the values that a function took with it from where it was defined."""
    try:
        return [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # one of them is not there yet
        return [object()]


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return a module's own attributes, other than parameters, buffers and modules."""
    return {name: value for name, value in vars(module).items() if name not in INNER}


def equal(a: Any, b: Any) -> bool:
    """Whether two snapshots are equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and torch.equal(a, b)
    if isinstance(a, _Node):
        same = a.kind is b.kind and len(a.parts) == len(b.parts)
        return same and all(equal(x, y) for x, y in zip(a.parts, b.parts, strict=True))
    try:
        return bool(a == b)
    except (RuntimeError, TypeError, ValueError):  # arrays do not say yes or no
        return False
