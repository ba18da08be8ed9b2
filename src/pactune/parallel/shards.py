"""Mini-batches whose rows several ranks share: each rank computes its part of a gradient, and the parts are added.

Let w_r be the fraction of the rows that rank r has. Then ∇R = Σ_r w_r ∇R_r, and `sum_over_shards` computes this sum.
Its derivative with respect to θ or λ is a sum over the ranks too. In the backward pass every rank gets the same
cotangent and multiplies it with the derivative of its own part. θ and λ enter the parts through `copy_to_shards`, whose
backward pass adds these products over the ranks. The penalty, the step and Δ_t are computed from the summed gradient.
They are the same on every rank and need no reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from pactune.errors import DataError, SettingError
from pactune.nested import map_tensors
from pactune.parallel.packing import flatten, unflatten
from pactune.parallel.ranks import Ranks
from pactune.problem import Problem
from pactune.problem.data import Batch
from pactune.problem.data.take_rows import take_rows
from pactune.trees import Params, clone, split

__all__ = ["check_shards", "copy_to_shards", "shard_batch", "sum_over_shards", "sum_trees"]

Risk = Callable[[Params, Params, Params, Batch], Tensor]


def shard_batch(batch: Batch, shard: int, shards: int) -> tuple[Batch, float]:
    """Return the rows of one shard of a mini-batch, and their number as a fraction of all rows.

    A shard without rows gets one row with weight 0, so that all ranks run the same code.

    >>> part, weight = shard_batch(Batch((torch.arange(5),), 5), 1, 2)
    >>> part.data[0].tolist(), weight
    ([2, 3, 4], 0.6)

    Raises:
        DataError: a tensor of the mini-batch does not have the rows as its first axis.
    """
    if shards == 1:
        return batch, 1.0
    first, last = shard * batch.rows // shards, (shard + 1) * batch.rows // shards
    rows = slice(first, last) if last > first else slice(0, 1)

    def cut(tensor: Tensor) -> Tensor:
        if not tensor.ndim or len(tensor) != batch.rows:
            raise DataError(
                f"a mini-batch of {batch.rows} rows cannot be shared between ranks: a tensor in it has the shape "
                f"{tuple(tensor.shape)}; every tensor needs the rows first, or use Parallel(shards=1)"
            )
        if tensor.layout == torch.strided:
            return tensor[rows]
        return take_rows(tensor, torch.arange(rows.start, rows.stop, device=tensor.device))

    numbers = None if batch.numbers is None else batch.numbers[rows]
    return Batch(map_tensors(batch.data, cut), rows.stop - rows.start, numbers), (last - first) / batch.rows


def copy_to_shards(ranks: Ranks, params: Params, hyper: Params) -> tuple[Params, Params]:
    """Return θ and λ for this rank's part of a risk. The backward pass sums derivatives over the group's ranks."""
    copies = cast(tuple[Tensor, ...], _CopyToShards.apply(ranks, *params.values(), *hyper.values()))  # type: ignore[no-untyped-call]
    own_params, own_hyper = split(copies, params, hyper)
    return own_params, own_hyper


def sum_over_shards(ranks: Ranks, parts: Params) -> Params:
    """Return the sum of a gradient's parts over the group's ranks. The sum is differentiable to any order."""
    sums = cast(tuple[Tensor, ...], _SumOverShards.apply(ranks, *parts.values()))  # type: ignore[no-untyped-call]
    return split(sums, parts)[0]


def sum_trees(ranks: Ranks, *trees: Params) -> list[Params]:
    """Return the sums over the group's ranks. They are sent in one message and have no derivative."""
    if ranks.shards == 1:
        return list(trees)
    flat = ranks.sum_shards(flatten(*trees))
    parts = torch.split(flat, [sum(value.numel() for value in tree.values()) for tree in trees])
    return [unflatten(part, tree) for part, tree in zip(parts, trees, strict=True)]


class _CopyToShards(torch.autograd.Function):
    """The identity, whose backward pass sums over the group's ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_SumOverShards.apply(ctx.ranks, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(_ctx: Any, _ranks: None, *tangents: Tensor) -> Any:
        return tuple(tangent.view_as(tangent) for tangent in tangents)


class _SumOverShards(torch.autograd.Function):
    """The sum over the group's ranks. Its backward pass is the identity: the cotangent is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return _sum(ranks, tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_CopyToShards.apply(ctx.ranks, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, _ranks: None, *tangents: Tensor) -> Any:
        return _sum(ctx.ranks, tangents)


def _sum(ranks: Ranks, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the sum of every tensor over the group's ranks, sent in one message."""
    named = {str(i): tensor for i, tensor in enumerate(tensors)}
    return tuple(unflatten(ranks.sum_shards(flatten(named)), named).values())


def check_shards(problem: Problem, shards: int, *, stochastic: bool) -> None:
    """Check on the first mini-batch of each sample that a risk is the mean over the rows.

    The check is made at the present λ and at another λ near it. A loss may divide by the sum of example weights, and
    the present λ does not show this if all weights are equal there.

    Args:
        problem: whose risks are checked.
        shards: how many ranks share a mini-batch; with 1 there is nothing to check.
        stochastic: True if a forward draws random numbers.

    Raises:
        SettingError: a risk is not the mean over the rows, a forward is random, or it changes buffers depending on the
            rows.
    """
    if shards == 1:
        return
    if stochastic:
        raise SettingError(
            f"`shards` must be 1, got {shards}: a forward draws random numbers (dropout?), which depend on the rows it "
            "gets; spread chains instead of mini-batches"
        )
    present = problem.hyperparameters()
    for role, source, risk in (
        ("train", problem.train, problem.train_risk),
        ("valid", problem.valid, problem.valid_risk),
    ):
        batch = source.first()
        parts = [shard_batch(batch, shard, shards) for shard in range(shards)]
        if not all(_is_row_mean(problem, risk, hyper, batch, parts) for hyper in (present, _nearby(present))):
            raise SettingError(
                f"`shards` must be 1, got {shards}: the {role} risk of a mini-batch is not the mean over its rows, or "
                "buffers depend on them, as with BatchNorm, a weighted or a contrastive loss; spread chains "
                "instead of mini-batches, or use GroupNorm"
            )


def _is_row_mean(problem: Problem, risk: Risk, hyper: Params, batch: Batch, parts: list[tuple[Batch, float]]) -> bool:
    """Return True if a risk is the weighted sum of its parts and every part leaves the same buffers.

    A risk that raises on the whole mini-batch counts as a mean: a loss may refuse the λ that `_nearby` draws.
    """

    def value(part: Batch) -> tuple[Tensor, Params]:
        buffers = clone(problem.buffers())
        return risk(problem.parameters(), hyper, buffers, part), buffers

    with torch.no_grad():
        try:
            whole, expected = value(batch)
        except (RuntimeError, ValueError):
            return True
        try:
            found = [(weight, *value(part)) for part, weight in parts]
        except (RuntimeError, ValueError):
            return False
        total = torch.stack([weight * each for weight, each, _ in found]).sum()
        tolerance = max(100 * torch.finfo(total.dtype).eps, 1e-9)
        same = all(torch.equal(buffers[name], expected[name]) for _, _, buffers in found for name in expected)
        return same and torch.allclose(total, whole, rtol=tolerance, atol=tolerance, equal_nan=True)


def _nearby(hyper: Params) -> Params:
    """Return another λ near this one; equal inputs give equal results on every rank."""
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn(value: Tensor) -> Tensor:
        return torch.randn(value.shape, generator=generator, dtype=torch.float32, device="cpu").to(value)

    return {name: value + 0.1 * (1 + value.abs()) * drawn(value) for name, value in hyper.items()}
