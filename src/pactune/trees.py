"""Linear algebra on `dict[str, Tensor]`, the form in which parameters and hyperparameters travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = [
    "Params",
    "add",
    "add_",
    "axpy",
    "clone",
    "detach",
    "dot",
    "leaves",
    "map_tree",
    "norm",
    "scale",
    "split",
    "sub",
    "zeros_like",
]

Params = dict[str, Tensor]


def map_tree(function: Callable[..., Tensor], tree: Params, *others: Params) -> Params:
    """Apply `function` to the tensors of one name, name by name."""
    return {name: function(value, *(other[name] for other in others)) for name, value in tree.items()}


def add(a: Params, b: Params) -> Params:
    """Return a + b."""
    return map_tree(torch.add, a, b)


def add_(a: Params, b: Params) -> None:
    """Add b to a in place."""
    for name, value in a.items():
        value.add_(b[name])


def sub(a: Params, b: Params) -> Params:
    """Return a − b."""
    return map_tree(torch.sub, a, b)


def scale(alpha: float | Tensor, a: Params) -> Params:
    """Return αa."""
    return {name: value * alpha for name, value in a.items()}


def axpy(alpha: float | Tensor, a: Params, b: Params) -> Params:
    """Return αa + b."""
    return map_tree(lambda x, y: y + alpha * x, a, b)


def dot(a: Params, b: Params) -> Tensor:
    """Return ⟨a, b⟩, summed over all tensors.

    >>> float(dot({"w": torch.ones(2, 3)}, {"w": 2 * torch.ones(2, 3)}))
    12.0
    """
    return torch.stack([torch.sum(value * b[name]) for name, value in a.items()]).sum()


def norm(a: Params) -> Tensor:
    """Return the Euclidean norm ‖a‖ over all tensors."""
    return dot(a, a).sqrt()


def zeros_like(a: Params) -> Params:
    """Return zeros of the same shapes."""
    return {name: torch.zeros_like(value) for name, value in a.items()}


def clone(a: Params) -> Params:
    """Return detached copies that share no memory with `a`."""
    return {name: value.detach().clone() for name, value in a.items()}


def detach(a: Params) -> Params:
    """Return the same memory outside every autograd graph."""
    return {name: value.detach() for name, value in a.items()}


def leaves(a: Params) -> Params:
    """Return the same memory as leaves of a new autograd graph."""
    return {name: value.detach().requires_grad_() for name, value in a.items()}


def split(values: Iterable[Tensor | None], *trees: Params) -> list[Params]:
    """Give the flat `values` the names of `trees`, in order; a missing value becomes zeros."""
    stream = iter(values)
    named: list[Params] = []
    for tree in trees:
        part: Params = {}
        for name, like in tree.items():
            value = next(stream)
            part[name] = torch.zeros_like(like) if value is None else value
        named.append(part)
    return named
