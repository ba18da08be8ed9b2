"""Snapshots of the Python objects that a problem's risks depend on, to notice that one of them has changed.

A recording keeps the values that it read, and stacked runs take them from the first run. So these values must stay the
same, and they must be equal in all stacked runs.
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
from pactune.problem.torch_hooks import registered_hooks

__all__ = ["ChangeDetector", "problem_snapshot", "same_content", "snapshots_equal"]

INNER = frozenset(vars(nn.Module())) - {"training"}  # the attributes that every module has
PLAIN = (int, float, str, bool, type(None))
LEAVES = {*PLAIN, CodeType, type, ModuleType}  # the most frequent types without parts
MOST_NODES = 5000  # nodes of one snapshot; a loss may hold a whole application. The rest is kept by reference.


class _Node(NamedTuple):
    """An object with its parts. An object that occurs again has its number in place of its parts.

    Two nodes are equal, as tuples, if their snapshots are. The types of the parts tell 1, 1.0 and True apart.
    """

    kind: type
    parts: tuple[Any, ...]
    types: tuple[type, ...]


class _TensorLeaf:
    """A tensor that is compared by its values."""

    __slots__ = ("value",)

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _TensorLeaf):
            return False
        a, b = self.value, other.value
        same = type(a) is type(b) and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        return a is b or (same and torch.equal(a, b))

    def __hash__(self) -> int:
        return id(self.value)


class _Reference:
    """An object that is compared by identity."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def problem_snapshot(problem: Problem) -> object:
    """Return a snapshot of everything that a problem's risks depend on, except θ, λ, the model's buffers and the data.

    The snapshot holds the types, settings and hooks of the modules, frozen parameters, the buffers of λ, and the losses
    with their parts. A loss or hook that holds one of the modules holds its number. The snapshot keeps tensors by
    reference, so it notices a replaced tensor but not one that is changed in place. It cannot see everything that
    Python code may read; engines therefore also compare numbers.
    """
    inside = dict.fromkeys(problem.model.modules())
    modules = inside | dict.fromkeys(problem.hyper.modules())
    parts: list[Any] = []  # of all modules in one list, which is faster than a node for each
    for module in modules:
        settings = _settings(module)
        parts += (
            type(module),
            None if type(module).__module__.startswith("torch.") else type(module).forward,
            len(settings),
            *settings,
            *settings.values(),
            {name: p for name, p in module._parameters.items() if p is not None and not p.requires_grad} or None,
            None if module in inside else dict(module._buffers) or None,
            tuple(registered_hooks(module)) or None,
        )
    numbered = {id(module): (number, module) for number, module in enumerate(modules)}
    return _snapshot((parts, problem.losses()), numbered, MOST_NODES + len(numbered))


class ChangeDetector:
    """Notices that an object on which a problem's risks depend has changed since the first step."""

    def __init__(self) -> None:
        self._first: WeakKeyDictionary[Problem, object] = WeakKeyDictionary()

    def run(self, step: Callable[[], object], problems: Iterable[Problem]) -> list[Problem]:
        """Run a step; return the problems whose snapshot after it differs from the one before their first step."""
        problems = list(problems)
        for problem in problems:
            if problem not in self._first:
                self._first[problem] = problem_snapshot(problem)
        step()
        return [problem for problem in problems if not snapshots_equal(problem_snapshot(problem), self._first[problem])]


def same_content(a: object, b: object) -> bool:
    """Return True if two objects have equal parts. Functions and modules are compared by their parts.

    In doubt the result is False.

    >>> def power(p): return lambda x: x ** p
    >>> same_content(power(2), power(2)), same_content(power(2), power(3))
    (True, False)
    """
    return snapshots_equal(snapshot(a), snapshot(b))


def snapshot(thing: object) -> object:
    """Return an object as a tree of its current parts. An object without known parts is a leaf, kept by reference."""
    return _snapshot(thing, {}, MOST_NODES)


def _snapshot(thing: Any, visited: dict[int, tuple[int, Any]], most: int) -> Any:
    if isinstance(thing, Tensor):
        return _TensorLeaf(thing)
    parts = _parts(thing)
    if parts is None or len(visited) >= most:
        return thing
    if id(thing) in visited:
        return _Node(type(thing), (visited[id(thing)][0],), (int,))
    if not isinstance(thing, tuple):  # a tuple can hold itself only through another object
        visited[id(thing)] = len(visited), thing  # keeps the object alive, so that no other one gets its id
    found = tuple([p if type(p) in LEAVES else _snapshot(p, visited, most) for p in parts])
    return _Node(type(thing), found, tuple(map(type, found)))


def _parts(thing: Any) -> tuple[Any, ...] | None:
    """Return the parts that decide how an object behaves; None if it has no parts."""
    if isinstance(thing, (list, tuple)):
        return tuple(thing)
    if isinstance(thing, dict):
        return (*thing, *thing.values())
    if type(thing) in LEAVES:
        return None
    if isinstance(thing, FunctionType):
        return thing.__code__, _closure_values(thing), thing.__defaults__, thing.__kwdefaults__, _plain_globals(thing)
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
    return _Reference(thing), vars(thing), _plain_values(vars(type(thing)))  # two such objects are never equal


def _plain_globals(function: FunctionType) -> dict[str, Any]:
    """Return the numbers and strings among the global variables that a function uses."""
    known = function.__globals__
    return _plain_values({name: known[name] for name in function.__code__.co_names if name in known})


def _plain_values(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in namespace.items() if type(value) in PLAIN and not name.startswith("__")}


def _closure_values(function: FunctionType) -> list[Any]:
    """Return the values in a function's closure."""
    try:
        return [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable is not assigned yet
        return [object()]


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes, except parameters, buffers and submodules."""
    return {name: value for name, value in vars(module).items() if name not in INNER}


def snapshots_equal(a: object, b: object) -> bool:
    """Return True if two snapshots are equal."""
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except (RuntimeError, TypeError, ValueError):  # the comparison of two arrays is no bool
        return False
