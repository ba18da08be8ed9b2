"""Linear algebra on `dict[str, Tensor]`, the form of parameters and hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

__all__ = [
    "Params",
    "add",
    "add_",
    "add_squares",
    "add_squares_",
    "axpy",
    "blocks",
    "clip",
    "clone",
    "copy_",
    "copy_tensors_",
    "detach",
    "dot",
    "leaves",
    "map_tree",
    "mul",
    "norm",
    "norms",
    "scale",
    "split",
    "stack",
    "sub",
    "sub_",
    "unstack",
    "zeros_like",
]

Params = dict[str, Tensor]
K = TypeVar("K")
V = TypeVar("V")

MANY = 8  # from this number of tensors on, one kernel for all of them is faster than one for each
LARGE = 2**14  # from this number of elements on, the memory of a tensor costs more time than the calls


def map_tree(function: Callable[..., Tensor], tree: Params, *others: Params) -> Params:
    """Apply `function` to the tensors of each name."""
    return {name: function(value, *(other[name] for other in others)) for name, value in tree.items()}


def add(a: Params, b: Params) -> Params:
    """Return a + b."""
    if _many(a, b):
        return _foreach(torch._foreach_add, a, b)
    return {name: torch.add(value, b[name]) for name, value in a.items()}


def add_(a: Params, b: Params) -> None:
    """Add b to a in place."""
    if _many(a, b):
        torch._foreach_add_(list(a.values()), [b[name] for name in a])
    else:
        for name, value in a.items():
            value.add_(b[name])


def add_squares(a: Params, b: Params) -> Params:
    """Return a + b², elementwise."""
    squared = [b[name] for name in a]
    return dict(zip(a, torch._foreach_addcmul(list(a.values()), squared, squared), strict=True))


def add_squares_(a: Params, b: Params) -> None:
    """Add b², elementwise, to a in place."""
    squared = [b[name] for name in a]
    torch._foreach_addcmul_(list(a.values()), squared, squared)


def sub(a: Params, b: Params) -> Params:
    """Return a − b."""
    if _many(a, b):
        return _foreach(torch._foreach_sub, a, b)
    return {name: torch.sub(value, b[name]) for name, value in a.items()}


def sub_(a: Params, b: Params) -> None:
    """Subtract b from a in place."""
    if _many(a, b):
        torch._foreach_sub_(list(a.values()), [b[name] for name in a])
    else:
        for name, value in a.items():
            value.sub_(b[name])


def mul(a: Params, b: Params) -> Params:
    """Return the elementwise product ab, for the names of a."""
    if _many(a, b):
        return _foreach(torch._foreach_mul, a, b)
    return {name: torch.mul(value, b[name]) for name, value in a.items()}


def scale(alpha: float | Tensor, a: Params) -> Params:
    """Return αa; a vector α has one factor for each entry of the leading axis."""
    if isinstance(alpha, Tensor) and alpha.ndim:
        return {name: value * alpha.reshape(-1, *[1] * (value.ndim - 1)) for name, value in a.items()}
    if _many(a) and not (isinstance(alpha, Tensor) and alpha.requires_grad):  # `_foreach_mul` has no derivative by α
        return dict(zip(a, torch._foreach_mul(list(a.values()), alpha), strict=True))
    return {name: value * alpha for name, value in a.items()}


def axpy(alpha: float | Tensor, a: Params, b: Params) -> Params:
    """Return αa + b."""
    return add(b, a if isinstance(alpha, float) and alpha == 1.0 else scale(alpha, a))


def dot(a: Params, b: Params) -> Tensor:
    """Return ⟨a, b⟩, summed over all tensors.

    >>> float(dot({"w": torch.ones(2, 3)}, {"w": 2 * torch.ones(2, 3)}))
    12.0
    """
    if a is b and _many(a) and not any(value.requires_grad for value in a.values()):
        return torch.stack(torch._foreach_norm(list(a.values()))).square().sum()
    sums = [torch.sum(value) for value in mul(a, b).values()]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()


def norm(a: Params) -> Tensor:
    """Return the Euclidean norm ‖a‖ over all tensors."""
    return dot(a, a).sqrt()


def norms(a: Params, axes: int = 1) -> Tensor:
    """Return the norm of every run's tree; the runs are along the first `axes` axes of all tensors."""
    return torch.stack([value[..., None].flatten(axes).square().sum(-1) for value in a.values()]).sum(0).sqrt()


def clip(a: Params, bound: float | None) -> Params:
    """Return a / max(1, ‖a‖/γ), smooth at a = 0; None for γ clips nothing.

    Dividing by γ before squaring, in float32 at least, keeps a large γ from overflowing.

    >>> clip({"w": torch.tensor([3.0, 4.0])}, 1e30)["w"]
    tensor([3., 4.])
    """
    if bound is None:
        return a
    unit = {name: value.to(torch.promote_types(value.dtype, torch.float32)) / bound for name, value in a.items()}
    return scale(1 / dot(unit, unit).clamp_min(1.0).sqrt(), a)


def blocks(a: Params) -> list[list[str]]:
    """Return the names in blocks, for a sequence of elementwise operations.

    Small tensors, and all tensors on an accelerator, are one block. A large tensor on a CPU is a block by itself, so
    that intermediate results stay in the cache.

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
    copies: Params = {}
    for dtype, names in _groups(a, lambda value: value.dtype):
        group = {name: a[name].detach() for name in names}
        if dtype != torch.bool and _many(group):
            copies |= zip(group, torch._foreach_mul(list(group.values()), 1), strict=True)
        else:
            copies |= {name: value.clone() for name, value in group.items()}
    return {name: copies[name] for name in a}


def copy_(a: Params, b: Params) -> None:
    """Copy the values of b into a, for the names of a."""
    copy_tensors_(list(a.values()), [b[name] for name in a])


@torch.no_grad()
def copy_tensors_(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into as many tensors. On a GPU tensors of one type and layout are copied by one kernel."""
    pairs = dict(enumerate(zip(targets, values, strict=True)))
    kinds = _groups(pairs, lambda pair: (pair[0].dtype, pair[1].dtype, pair[0].stride() == pair[1].stride()))
    for _, chosen in kinds:
        torch._foreach_copy_([targets[i] for i in chosen], [values[i] for i in chosen])


def detach(a: Params) -> Params:
    """Return tensors that share the memory of `a`, outside every autograd graph."""
    return {name: value.detach() for name, value in a.items()}


def leaves(a: Params) -> Params:
    """Return tensors that share the memory of `a`, as leaves of a new autograd graph."""
    return {name: value.detach().requires_grad_() for name, value in a.items()}


def split(values: Iterable[Tensor | None], *trees: Params) -> list[Params]:
    """Return the flat `values` under the names of `trees`, in order; None becomes zeros, a sparse tensor becomes dense.

    Gradients of embeddings may be sparse, and dynamics and objectives compute with dense tensors.
    """
    stream = iter(values)
    named: list[Params] = []
    for tree in trees:
        part: Params = {}
        for name, like in tree.items():
            value = next(stream)
            part[name] = torch.zeros_like(like) if value is None else value.to_dense() if value.is_sparse else value
        named.append(part)
    return named


def stack(trees: Sequence[Params]) -> Params:
    """Return one tree whose tensors have a leading axis."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def unstack(tree: Params) -> list[Params]:
    """Return the part of every run in a stacked tree. The parts share its memory.

    >>> unstack(stack([{"w": torch.zeros(2)}, {"w": torch.ones(2)}]))[1]
    {'w': tensor([1., 1.])}
    """
    columns = {name: value.unbind() for name, value in tree.items()}
    return [dict(zip(columns, parts, strict=True)) for parts in zip(*columns.values(), strict=True)]


def _many(a: Params, *others: Params) -> bool:
    """True if one kernel for all tensors pays and exists; inside `torch.vmap` there is none."""
    if len(a) < MANY:
        return False
    every = [tree[name] for tree in (a, *others) for name in a]
    return not any(is_batchedtensor(value) for value in every)


def _groups(values: Mapping[K, V], kind: Callable[[V], Hashable]) -> list[tuple[Any, list[K]]]:
    """Return the keys of values by the kind of the value."""
    groups: dict[Any, list[K]] = {}
    for key, value in values.items():
        groups.setdefault(kind(value), []).append(key)
    return list(groups.items())


def _foreach(function: Callable[..., Sequence[Tensor]], a: Params, b: Params) -> Params:
    return dict(zip(a, function(list(a.values()), [b[name] for name in a]), strict=True))
