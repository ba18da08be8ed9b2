"""Nested values, such as batches: tuples, dicts, dataclasses and others that hold tensors, taken apart and rebuilt.

Torch's pytree knows tuples, lists, dicts and the types that a library registers. A batch of a Hugging Face loader is a
mapping of another type, and a batch of one's own is often a dataclass. `flatten` opens them all, so that every part of
the package handles one set of structures. It registers nothing, because a registry belongs to the whole process.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Nesting", "flatten", "items_of", "map_tensors", "other_leaf", "tensors_in"]

PLAIN = (int, float, str, bool, type(None))
LEAVES = {Tensor, frozenset, *PLAIN}  # the most frequent types of leaves
TENSORS, NAMES = {Tensor}, {str}  # of the values and the keys of the most frequent dicts


class _Opened(NamedTuple):
    """A container as its parts.

    Attributes:
        parts: the parts.
        keys: what two containers of one type must share to have one structure, such as the names of the parts.
        rebuild: returns a container of the same type with other parts.
    """

    parts: Sequence[Any]
    keys: Any
    rebuild: Callable[[list[Any]], Any]


class Nesting:
    """The structure of a nested value without its leaves. Equal structures have equal types, keys and nesting.

    Attributes:
        kind: the type of the container; None for a leaf.
        keys: the names of the parts, and plain attributes of the container.
        parts: the structures of the parts.
    """

    __slots__ = ("_rebuild", "keys", "kind", "parts")

    def __init__(self, kind: type | None, keys: Any, parts: tuple[Nesting, ...], rebuild: Any = None) -> None:
        self.kind, self.keys, self.parts, self._rebuild = kind, keys, parts, rebuild

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        same = isinstance(other, Nesting) and self.kind is other.kind and self.keys == other.keys
        return same and self.parts == other.parts  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.kind, self.parts))

    def restore(self, leaves: Sequence[Any]) -> Any:
        """Return the nested value with these leaves."""
        return self._restored(iter(leaves))

    def _restored(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        return self._rebuild([next(leaves) if part is LEAF else part._restored(leaves) for part in self.parts])


LEAF = Nesting(None, None, ())


def flatten(value: Any) -> tuple[list[Any], Nesting]:
    """Return the leaves of a nested value, tensors and others, and its structure.

    >>> leaves, nesting = flatten({"x": (1, 2), "y": [3]})
    >>> leaves, nesting.restore([10 * leaf for leaf in leaves])
    ([1, 2, 3], {'x': (10, 20), 'y': [30]})
    """
    leaves: list[Any] = []
    return leaves, _walk(value, leaves)


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a nested value; other leaves stay as they are."""
    leaves, nesting = flatten(value)
    return nesting.restore([function(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of a nested value in a fixed order."""
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor)]


def other_leaf(value: Any) -> type | None:
    """Return the type of the first leaf that is neither a tensor nor None; None if there is no such leaf."""
    return next((type(leaf) for leaf in flatten(value)[0] if not (leaf is None or isinstance(leaf, Tensor))), None)


def items_of(value: Any) -> list[tuple[str | None, Any]] | None:
    """Return the parts of a container with their names; None for a leaf. The parts of a tuple or list have no name.

    >>> items_of({"x": 1}), items_of((1, 2)), items_of(3)
    ([('x', 1)], [(None, 1), (None, 2)], None)
    """
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if _is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    opened = _open(value)
    return None if opened is None else [(None, part) for part in opened.parts]


def _walk(value: Any, leaves: list[Any]) -> Nesting:
    kind: Any = type(value)
    if kind in LEAVES:
        leaves.append(value)
        return LEAF
    if kind is tuple or kind is list:  # the most frequent containers
        if {*map(type, value)} <= TENSORS:
            leaves += value
            return _flat(kind, len(value))
        return Nesting(kind, len(value), tuple([_walk(part, leaves) for part in value]), kind)
    if kind is dict and {*map(type, value.values())} <= TENSORS and {*map(type, value)} <= NAMES:
        leaves += value.values()
        return _flat_dict(tuple(value))
    if _is_named_tuple(kind):
        return Nesting(kind, kind._fields, tuple([_walk(part, leaves) for part in value]), kind._make)
    opened = _open(value)
    if opened is None:
        leaves.append(value)
        return LEAF
    parts = tuple([_walk(part, leaves) for part in opened.parts])
    return Nesting(kind, opened.keys, parts, opened.rebuild)


@lru_cache
def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


@lru_cache
def _flat(kind: type, count: int) -> Nesting:
    """Return the structure of a tuple or list of tensors. It is one object, which is compared at once."""
    return Nesting(kind, count, (LEAF,) * count, kind)


@lru_cache
def _flat_dict(names: tuple[str, ...]) -> Nesting:
    """Return the structure of a dict of tensors, which is also one object."""
    return Nesting(dict, names, (LEAF,) * len(names), lambda parts: dict(zip(names, parts, strict=True)))


def _open(value: Any) -> _Opened | None:
    """Return a container as its parts; None for a leaf."""
    kind: Any = type(value)
    if isinstance(value, Tensor):
        return None
    if kind is dict:
        keys = tuple(value)
        return _Opened(tuple(value.values()), keys, lambda parts: dict(zip(keys, parts, strict=True)))
    if kind is tuple or kind is list:
        return _Opened(value, len(value), kind)
    if _is_named_tuple(kind):
        return _Opened(value, kind._fields, kind._make)
    if kind in pytree.SUPPORTED_NODES:
        parts, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        return _Opened(parts, context, lambda parts: pytree.SUPPORTED_NODES[kind].unflatten_fn(parts, context))
    if isinstance(value, Mapping):
        return _open_mapping(value)
    if _is_dataclass(value):
        return _open_dataclass(value)
    return _Opened(value, len(value), kind) if isinstance(value, (tuple, list)) else None


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _open_mapping(value: Mapping[Any, Any]) -> _Opened:
    """Open a mapping of any type."""
    if isinstance(value, (dict, UserDict)):
        return _open_copyable(value)
    kind, names = type(value), tuple(value)
    return _Opened(
        [value[name] for name in names], names, lambda parts: _as_kind(kind, dict(zip(names, parts, strict=True)))
    )


def _open_copyable(value: dict[Any, Any] | UserDict[Any, Any]) -> _Opened:
    """Open a mapping whose copy has entries of its own. Attributes that are no plain values are parts too.

    A loss may read these attributes, and they may differ from batch to batch.
    """
    names, hidden = tuple(value), dict(getattr(value, "__dict__", {}))
    if isinstance(value, UserDict):
        hidden.pop("data")  # the entries
    plain = {name: part for name, part in hidden.items() if type(part) in PLAIN}
    others = tuple(name for name in hidden if name not in plain)

    def filled(like: Any, parts: Sequence[Any]) -> Any:
        made = copy.copy(like)
        made.update(zip(names, parts, strict=False))
        if others:
            vars(made).update(zip(others, parts[len(names) :], strict=True))
        return made

    empty = filled(value, [None] * (len(names) + len(others)))  # so that a structure holds no tensors
    parts = [*(value[name] for name in names), *(hidden[name] for name in others)]
    return _Opened(parts, (names, others, plain), lambda parts: filled(empty, parts))


def _as_kind(kind: Any, entries: dict[Any, Any]) -> Any:
    """Return the entries as a mapping of a type; as a dict if the type cannot be made from a dict."""
    try:
        made = kind(entries)
        return made if tuple(made) == tuple(entries) else entries
    except Exception:  # the type is the user's and may raise anything
        return entries


def _open_dataclass(value: Any) -> _Opened:
    """Open a dataclass by its fields. A rebuilt one is a copy, so that `__post_init__` does not run again."""
    names = tuple(field.name for field in dataclasses.fields(value) if hasattr(value, field.name))
    empty = copy.copy(value)
    for name in names:
        object.__setattr__(empty, name, None)

    def rebuild(parts: list[Any]) -> Any:
        made = copy.copy(empty)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(made, name, part)
        return made

    return _Opened([getattr(value, name) for name in names], names, rebuild)
