"""Linear algebra on `dict[str, Tensor]`, the form of parameters and hyperparameters everywhere in the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

__all__ = [
    "Params",
    "add",
    "add_",
    "axpy",
    "blocks",
    "clip",
    "clone",
    "detach",
    "dot",
    "leaves",
    "map_tree",
    "mul",
    "norm",
    "scale",
    "split",
    "sub",
    "sub_",
    "zeros_like",
]

Params = dict[str, Tensor]

MANY = 8  # tensors; from this number on, one kernel for all tensors is faster than one kernel for each
LARGE = 2**14  # elements; for a larger tensor, memory access costs more than the calls


def map_tree(function: Callable[..., Tensor], tree: Params, *others: Params) -> Params:
    """Apply `function` to the tensors of each name."""
    return {name: function(value, *(other[name] for other in others)) for name, value in tree.items()}


def add(a: Params, b: Params) -> Params:
    """Return a + b."""
    return _foreach(torch._foreach_add, a, b) if _many(a, b) else map_tree(torch.add, a, b)


def add_(a: Params, b: Params) -> None:
    """Add b to a in place."""
    if _many(a, b):
        torch._foreach_add_(list(a.values()), [b[name] for name in a])
    else:
        for name, value in a.items():
            value.add_(b[name])


def sub(a: Params, b: Params) -> Params:
    """Return a − b."""
    return _foreach(torch._foreach_sub, a, b) if _many(a, b) else map_tree(torch.sub, a, b)


def sub_(a: Params, b: Params) -> None:
    """Subtract b from a in place."""
    if _many(a, b):
        torch._foreach_sub_(list(a.values()), [b[name] for name in a])
    else:
        for name, value in a.items():
            value.sub_(b[name])


def mul(a: Params, b: Params) -> Params:
    """Return the elementwise product ab, for the names of a."""
    return _foreach(torch._foreach_mul, a, b) if _many(a, b) else map_tree(torch.mul, a, b)


def scale(alpha: float | Tensor, a: Params) -> Params:
    """Return αa. A vector α has one factor for each entry of the leading axis."""
    if isinstance(alpha, Tensor) and alpha.ndim:
        return {name: value * alpha.reshape(-1, *[1] * (value.ndim - 1)) for name, value in a.items()}
    if _many(a):
        return dict(zip(a, torch._foreach_mul(list(a.values()), alpha), strict=True))
    return {name: value * alpha for name, value in a.items()}


def axpy(alpha: float | Tensor, a: Params, b: Params) -> Params:
    """Return αa + b."""
    return add(b, scale(alpha, a))


def dot(a: Params, b: Params) -> Tensor:
    """Return ⟨a, b⟩, summed over all tensors.

    >>> float(dot({"w": torch.ones(2, 3)}, {"w": 2 * torch.ones(2, 3)}))
    12.0
    """
    if a is b and _many(a) and not any(value.requires_grad for value in a.values()):
        return torch.stack(torch._foreach_norm(list(a.values()))).square().sum()
    return torch.stack([torch.sum(value) for value in mul(a, b).values()]).sum()


def norm(a: Params) -> Tensor:
    """Return the Euclidean norm ‖a‖ over all tensors."""
    return dot(a, a).sqrt()


def clip(a: Params, bound: float | None) -> Params:
    """Return a / max(1, ‖a‖/γ), smooth at a = 0. With γ = None it returns a.

    The division by γ before squaring, at least in float32, avoids an overflow for a large γ.

    >>> clip({"w": torch.tensor([3.0, 4.0])}, 1e30)["w"]
    tensor([3., 4.])
    """
    if bound is None:
        return a
    unit = {name: value.to(torch.promote_types(value.dtype, torch.float32)) / bound for name, value in a.items()}
    return scale(1 / dot(unit, unit).clamp_min(1.0).sqrt(), a)


def blocks(a: Params) -> list[list[str]]:
    """Return the names in blocks. A sequence of operations is fastest if it treats one block after the other.

    On an accelerator all tensors are one block. On a CPU each large tensor is its own block, so that intermediate
    values stay in the cache.

    >>> blocks({"large": torch.zeros(1000, 1000), "small": torch.zeros(10), "smaller": torch.zeros(5)})
    [['small', 'smaller'], ['large']]
    """
    large = [name for name, value in a.items() if value.device.type == "cpu" and value.numel() > LARGE]
    small = [name for name in a if name not in large]
    return [*([small] if small else []), *([name] for name in large)]


def zeros_like(a: Params) -> Params:
    """Return zeros of the same shapes."""
    return {name: torch.zeros_like(value) for name, value in a.items()}


def clone(a: Params) -> Params:
    """Return detached copies that share no memory with `a`."""
    floats = {name: value.detach() for name, value in a.items() if value.is_floating_point()}
    if _many(floats):
        copies = dict(zip(floats, torch._foreach_mul(list(floats.values()), 1), strict=True))
        return {name: copies[name] if name in copies else value.detach().clone() for name, value in a.items()}
    return {name: value.detach().clone() for name, value in a.items()}


def detach(a: Params) -> Params:
    """Return the detached tensors, which share the memory of `a`."""
    return {name: value.detach() for name, value in a.items()}


def leaves(a: Params) -> Params:
    """Return leaves of a new autograd graph, which share the memory of `a`."""
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


def _many(a: Params, *others: Params) -> bool:
    """True if one kernel for all tensors is faster and exists; there is none under `torch.vmap`."""
    if len(a) < MANY:
        return False
    every = [tree[name] for tree in (a, *others) for name in a]
    return not any(is_batchedtensor(value) for value in every)


def _foreach(function: Callable[..., Sequence[Tensor]], a: Params, b: Params) -> Params:
    return dict(zip(a, function(list(a.values()), [b[name] for name in a]), strict=True))


def stack(trees: Sequence[Params]) -> Params:
    """Stack trees into one with a leading axis."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def unstack(tree: Params) -> list[Params]:
    """Return the trees of a stacked tree; they share its memory.

    >>> unstack(stack([{"w": torch.zeros(2)}, {"w": torch.ones(2)}]))[1]
    {'w': tensor([1., 1.])}
    """
    columns = {name: value.unbind() for name, value in tree.items()}
    return [dict(zip(columns, parts, strict=True)) for parts in zip(*columns.values(), strict=True)]
