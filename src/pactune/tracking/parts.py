"""Describe modules, functions and objects as text, part by part. Two processes that build the same get the same text.

A part is an attribute, a tensor, a sub-module, a function or a global that an object uses; its name is the path to it.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from pactune.problem.modules import frozen_parts
from pactune.problem.torch_hooks import registered_hooks

__all__ = ["Parts", "describe_parts", "name_of", "without_digests"]

Parts = dict[str, str]  # descriptions by path
INNER = frozenset(vars(nn.Module()))  # attributes that every module has
CONTAINERS = (list, tuple, set, frozenset, dict)
UNORDERED = (set, frozenset, dict)
VARYING = (torch.device, torch.Generator, PurePath)  # their values may differ between two processes of one run
SCALARS = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, np.generic)
# Types of globals and class attributes that are described, besides the user's classes.
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial, type)
SETTINGS = (*SCALARS, *CONTAINERS, *FUNCTIONS, Tensor, np.ndarray, nn.Module, SimpleNamespace)
# Methods that pactune and torch call, and methods that change no number.
ENTRIES = {
    "forward",
    "penalty",
    "penalty_gradient",
    "penalty_vjp",
    "penalty_product",
    "learning_rates",
    "initial",
    "weigh",
    "prox",
}
ASIDE = {"__init__", "__repr__", "__str__", "__doc__", "__module__", "__qualname__", "__reduce__", "__getstate__"}
ASIDE |= {"__setstate__", "__firstlineno__", "__static_attributes__"}
LONGEST = 160  # characters of one description; a longer one ends in a checksum
MOST = 1000  # elements of a list that are described
SMALL = 4096  # elements of a tensor whose checksum is always computed
DEEPEST = 12  # levels of objects inside objects


def describe_parts(modules: Mapping[str, nn.Module], others: Mapping[str, Any], *, checksums: bool = True) -> Parts:
    """Return descriptions of all parts of modules and other objects, for instance {"model.3.p": "0.2"}.

    The text holds no memory addresses and does not depend on the hash seed. The user's functions and classes are
    described by a checksum of their bytecode, which comments and line numbers do not change. Code of installed packages
    is described by its name. The values of θ, λ and the model's buffers are left out.

    Args:
        modules: the modules with the trained parameters; the first one is the model.
        others: losses and settings.
        checksums: True to include checksums of large tensors and of arrays, which takes time.
    """
    describer = _Describer(modules, checksums=checksums)
    for name, module in modules.items():
        describer.add(name, module)
    for name, value in others.items():
        describer.add(name, value)
    return describer.found


def without_digests(parts: Parts) -> Parts:
    """Return the descriptions without checksums, which may differ between versions of Python or torch."""
    return {name: re.sub(r" (code|checksum) [0-9a-f]+", "", str(words)) for name, words in parts.items()}


class _Describer:
    """Describes objects and, recursively, their parts. An object that occurs twice is described by its first path."""

    def __init__(self, modules: Mapping[str, nn.Module], *, checksums: bool) -> None:
        self.found: Parts = {}
        self._checksums = checksums
        self._named: set[str] = set()  # names that the described functions use
        self._seen: dict[int, tuple[str, Any]] = {}  # path and object by id; the reference keeps the id unique
        model = next(iter(modules.values()))
        # `fit` puts these parts into training mode
        self._resting = set() if model.training else set(model.modules()) - frozen_parts(model)
        trained = [(root, *pair) for root in modules for pair in modules[root].named_parameters() if _moves(pair[1])]
        buffers = [(next(iter(modules)), *pair) for pair in model.named_buffers()]
        for root, name, value in (*trained, *buffers):
            self._seen.setdefault(id(value), (f"{root}.{name}", value))

    def add(self, path: str, value: Any, depth: int = 0) -> None:
        """Add the descriptions of a value and its parts."""
        words = self._words(value)
        if words is not None:
            self.found[path] = _short(words)
        elif id(value) in self._seen:
            first = self._seen[id(value)][0]
            self.found |= {} if first == path else {path: f"the same as {first}"}
        elif depth > DEEPEST:
            self.found[path] = name_of(type(value))
        else:
            self._seen[id(value)] = path, value
            if isinstance(value, FunctionType):
                self._named |= _names(value.__code__)
            self._add_parts(path, value, depth + 1)

    def _add_parts(self, path: str, value: Any, depth: int) -> None:
        for name, part in self._parts(value):
            if name:
                self.add(f"{path}.{name}", part, depth)
            else:
                self.found[path] = _short(str(part))

    def _words(self, value: Any, depth: int = 0) -> str | None:
        """Return the text of a value without parts; None if the value has parts."""
        if isinstance(value, SCALARS):
            return re.sub(r"\b(cuda|xpu|hpu|mps):\d+", r"\1", repr(value)) if isinstance(value, str) else repr(value)
        if isinstance(value, VARYING):
            return type(value).__name__
        if isinstance(value, Tensor):
            return None if id(value) in self._seen else self._tensor(value)
        if isinstance(value, np.ndarray):
            return f"array {value.shape} {value.dtype}{self._array_checksum(value)}"
        if isinstance(value, CONTAINERS):
            return self._container(value, depth) if depth < DEEPEST else None
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        return name_of(value) if isinstance(value, BuiltinFunctionType) else None

    def _container(self, value: Any, depth: int) -> str | None:
        """Return the text of a container of plain values; None if an element has parts."""
        pairs = value.items() if isinstance(value, dict) else ((None, part) for part in value)
        words = []
        for key, part in islice(pairs, MOST):
            found = self._words(part, depth + 1)
            if found is None:
                return None
            words.append(found if key is None else f"{_plain_repr(key)}: {found}")
        text = ", ".join(sorted(words) if isinstance(value, UNORDERED) else words)
        return f"{type(value).__name__}({text}{f', … {len(value)}' if len(value) > MOST else ''})"

    def _tensor(self, value: Tensor) -> str:
        words = f"tensor {tuple(value.shape)} {value.dtype}"
        wanted = self._checksums or value.numel() <= SMALL
        if not wanted or value.is_meta or value.layout != torch.strided or value.is_quantized:
            return words
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        return f"{words} checksum {_digest(data)}"

    def _array_checksum(self, value: np.ndarray[Any, Any]) -> str:
        """Return the checksum of an array; an array of objects holds addresses and has none."""
        return self._checksum(value.tobytes()) if self._checksums and not value.dtype.hasobject else ""

    def _checksum(self, data: Any) -> str:
        return f" checksum {_digest(data)}" if self._checksums else ""

    def _parts(self, value: Any) -> Iterable[tuple[str, Any]]:
        """Return the parts of a value by name; the empty name stands for the value itself."""
        if isinstance(value, nn.Module):
            return _module_parts(value, evaluating=not value.training and value not in self._resting)
        if isinstance(value, FunctionType):
            return _function_parts(value)
        if isinstance(value, MethodType):
            return [("", f"method {name_of(value)}"), ("function", value.__func__), ("object", value.__self__)]
        if isinstance(value, partial):
            arguments = [*enumerate(value.args), *value.keywords.items()]
            return [("", "partial"), ("function", value.func), *((str(key), part) for key, part in arguments)]
        if isinstance(value, type):
            return _class_parts(value, self._named)
        if isinstance(value, CONTAINERS):
            return _members(value)
        return _object_parts(value, self._named)


def _moves(value: Tensor) -> bool:
    """True if training changes a parameter. A frozen one must be the same when a run is resumed."""
    return value.requires_grad or not _is_made(value)


def _members(value: Any) -> Iterable[tuple[str, Any]]:
    kind = type(value).__name__
    if isinstance(value, (set, frozenset)):  # the order differs between processes
        return [("", f"{kind} of {len(value)}")]
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return [("", kind), *((key if isinstance(key, str) and key else _plain_repr(key), part) for key, part in pairs)]


def _module_parts(module: nn.Module, *, evaluating: bool) -> Iterator[tuple[str, Any]]:
    yield "", f"{name_of(type(module))}{' in evaluation mode' if evaluating else ''}"
    yield from _own_class(module)
    yield from ((name, value) for name, value in vars(module).items() if name not in INNER)
    yield from registered_hooks(module)
    tensors = {**module._parameters, **module._buffers}
    yield from ((name, value) for name, value in tensors.items() if value is not None and _is_made(value))
    yield from ((name, part) for name, part in module._modules.items() if part is not None)
    if isinstance(module, torch.jit.ScriptModule):
        yield "code", str(module.code)


def _is_made(value: Tensor) -> bool:
    return not isinstance(value, (UninitializedParameter, UninitializedBuffer))


def _function_parts(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's code and, for a function of the user, its defaults, closure and globals."""
    if not _is_users(function.__module__):
        yield "", name_of(function)
        return
    yield "", f"function {name_of(function)} code {_digest(_code_text(function.__code__, function.__doc__).encode())}"
    yield from (("defaults", found) for found in (function.__defaults__,) if found)
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
        if name != "__class__":
            yield name, value
    for name in sorted(_globals(function.__code__)):
        value = function.__globals__.get(name)
        if value is not None and _is_setting(value):
            yield name, value


def _class_parts(kind: type, named: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the methods and plain attributes of a user's class that the described code can reach by name."""
    yield "", name_of(kind)
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__ if _is_users(kind.__module__) else ()):
        own = _is_users(base.__module__)
        members |= {name: _unwrapped(value) if own else None for name, value in vars(base).items()}
    functions_first = sorted(_reachable(members, named), key=lambda name: not isinstance(members[name], FunctionType))
    for name in functions_first:  # the functions name the attributes of the objects that follow
        value = members[name]
        if isinstance(value, FunctionType) or (value is not None and name[:2] != "__" and _is_setting(value)):
            yield name, value


def _reachable(members: dict[str, Any], named: set[str]) -> list[str]:
    """Return the names of the members that pactune or torch call, or that the described code names."""
    wanted = {name for name in members if name in named or name in ENTRIES or (name[:2] == "__" and name not in ASIDE)}
    while True:
        codes = [members[name].__code__ for name in wanted if isinstance(members[name], FunctionType)]
        more = {name for code in codes for name in _names(code) if name in members} - wanted
        if not more:
            return sorted(wanted)
        wanted |= more


def _object_parts(value: Any, named: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield all attributes of a settings object, and those attributes of a user's object that the code names.

    An object of another library is described by its `repr`.
    """
    kind = type(value)
    settings = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not (_is_users(kind.__module__) or settings):
        yield "", _plain_repr(value)
        return
    yield "", name_of(kind)
    yield from _own_class(value)
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if hasattr(value, name)]
    found = {**{name: getattr(value, name) for name in slots if name != "__dict__"}, **getattr(value, "__dict__", {})}
    yield from ((name, found[name]) for name in sorted(found) if settings or name in named)


def _own_class(value: Any) -> Iterator[tuple[str, Any]]:
    if _is_users(type(value).__module__):
        yield "class", type(value)


def _unwrapped(value: Any) -> Any:
    """Return the function in a static method, class method or property."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


@cache
def _is_users(module: str | None) -> bool:
    """True if a module belongs to the user: not to pactune, torch or Python, nor to an installed package."""
    top = (module or "").partition(".")[0]
    if top in ("pactune", "torch", "builtins") or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return not file or not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _is_setting(value: Any) -> bool:
    """True if a global or class attribute is described. Objects of other libraries differ between processes."""
    return isinstance(value, SETTINGS) or _is_users(type(value).__module__)


@cache
def _globals(code: CodeType) -> frozenset[str]:
    """Return the names of the globals that code reads."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(own).union(*(_globals(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in code."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _code_text(code: CodeType, doc: str | None = None) -> str:
    """Return the bytecode as text, without names of local variables, line numbers and the docstring."""
    constants = [
        _code_text(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts if c != doc or not c
    ]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_argcount} {code.co_kwonlyargcount}"


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def name_of(value: Any) -> str:
    """Return the name of a function or class; for another object, the name of its class."""
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__)


def _plain_repr(value: Any) -> str:
    """Return the `repr` of a value without memory addresses, which differ between processes."""
    try:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    except Exception:  # the `repr` of a user's class may raise anything
        return name_of(type(value))


def _short(words: str) -> str:
    if len(words) <= LONGEST:
        return words
    return f"{words[: LONGEST - 40]}… checksum {_digest(words.encode())}"


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()
