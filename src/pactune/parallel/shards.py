"""A mini-batch shared between ranks: each computes its rows' part of a gradient, and sums are explicit.

With w_r the share of the rows that rank r has, ∇R = Σ_r w_r ∇R_r. `collect` is that sum. Its derivative with respect
to θ or λ is a sum over ranks again: the cotangent, which is the same everywhere, meets each rank's own part, and what
arrives at `spread`, through which θ and λ went to the ranks, is added up. Whatever is computed from the collected
gradient (the penalty, the step, Δ_t) is the same on every rank and needs no reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from pactune.errors import DataError, SettingError
from pactune.parallel.packing import flatten, unflatten
from pactune.parallel.ranks import Ranks
from pactune.problem import Problem
from pactune.problem.data import Batch
from pactune.problem.data.source import map_tensors
from pactune.trees import Params, clone, split

__all__ = ["check_shards", "collect", "share", "spread", "sum_trees"]

Risk = Callable[[Params, Params, Params, Batch], Tensor]


def share(batch: Batch, shard: int, shards: int) -> tuple[Batch, float]:
    """Return the rows of one rank and their share of the mini-batch.

    A rank without rows gets one with share 0, so that all ranks run the same code.

    >>> part, weight = share(Batch((torch.arange(5),), 5), 1, 2)
    >>> part.data[0].tolist(), weight
    ([2, 3, 4], 0.6)

    Raises:
        DataError: the rows of the mini-batch cannot be told apart.
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
        return tensor[rows]

    numbers = None if batch.numbers is None else batch.numbers[rows]
    return Batch(map_tensors(batch.data, cut), rows.stop - rows.start, numbers), (last - first) / batch.rows


def spread(ranks: Ranks, params: Params, hyper: Params) -> tuple[Params, Params]:
    """Return θ and λ as a rank's part of a risk sees them: derivatives that come back are summed over the ranks."""
    sent = cast(tuple[Tensor, ...], _Spread.apply(ranks, *params.values(), *hyper.values()))  # type: ignore[no-untyped-call]
    here, lambdas = split(sent, params, hyper)
    return here, lambdas


def collect(ranks: Ranks, parts: Params) -> Params:
    """Return the sum over the ranks of their parts of a gradient, differentiable to any order."""
    found = cast(tuple[Tensor, ...], _Collect.apply(ranks, *parts.values()))  # type: ignore[no-untyped-call]
    return split(found, parts)[0]


def sum_trees(ranks: Ranks, *trees: Params) -> list[Params]:
    """Return the sums over the ranks in one message, without a derivative."""
    if ranks.shards == 1:
        return list(trees)
    flat = ranks.sum_shards(flatten(*trees))
    parts = torch.split(flat, [sum(value.numel() for value in tree.values()) for tree in trees])
    return [unflatten(part, tree) for part, tree in zip(parts, trees, strict=True)]


class _Spread(torch.autograd.Function):
    """The identity, whose derivative is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_Collect.apply(ctx.ranks, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(_ctx: Any, _team: None, *tangents: Tensor) -> Any:
        return tuple(tangent.view_as(tangent) for tangent in tangents)


class _Collect(torch.autograd.Function):
    """The sum over the ranks, whose derivative is the identity: the cotangent is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return _sum(ranks, tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_Spread.apply(ctx.ranks, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, _team: None, *tangents: Tensor) -> Any:
        return _sum(ctx.ranks, tangents)


def _sum(ranks: Ranks, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Sum all tensors in one message."""
    named = {str(i): tensor for i, tensor in enumerate(tensors)}
    return tuple(unflatten(ranks.sum_shards(flatten(named)), named).values())


def check_shards(problem: Problem, shards: int, *, stochastic: bool) -> None:
    """Try on the first mini-batch of each sample whether a risk is the mean over the rows.

    It is tried at the present λ and at one beside it: weights that are all equal at the start hide that a loss divides
    by their sum.

    Raises:
        SettingError: it is not, a forward is random, or it changes buffers by what it sees.
    """
    if shards == 1:
        return
    if stochastic:
        raise SettingError(
            f"`shards` must be 1, got {shards}: a forward draws random numbers (dropout?), which depend on the rows it "
            "gets; spread chains instead of mini-batches"
        )
    here = problem.hyperparameters()
    for role, source, risk in (
        ("train", problem.train, problem.train_risk),
        ("valid", problem.valid, problem.valid_risk),
    ):
        batch = source.first()
        parts = [share(batch, shard, shards) for shard in range(shards)]
        if not (_adds_up(problem, risk, here, batch, parts) and _adds_up(problem, risk, _beside(here), batch, parts)):
            raise SettingError(
                f"`shards` must be 1, got {shards}: the {role} risk of a mini-batch is not the mean over its rows, or "
                "buffers depend on them, as with BatchNorm, a weighted or a contrastive loss; spread chains "
                "instead of mini-batches, or use GroupNorm"
            )


def _adds_up(problem: Problem, risk: Risk, hyper: Params, batch: Batch, parts: list[tuple[Batch, float]]) -> bool:
    """Whether a risk is the weighted sum of its parts and leaves the same buffers; so too where it has no value."""

    def value(part: Batch) -> tuple[Tensor, Params]:
        buffers = clone(problem.buffers())
        return risk(problem.parameters(), hyper, buffers, part), buffers

    with torch.no_grad():
        try:
            whole, left = value(batch)
        except (RuntimeError, ValueError):
            return True  # a loss may refuse a λ that nobody chose
        try:
            found = [(weight, *value(part)) for part, weight in parts]
        except (RuntimeError, ValueError):
            return False
        total = torch.stack([weight * each for weight, each, _ in found]).sum()
        tolerance = max(100 * torch.finfo(total.dtype).eps, 1e-9)
        same = all(torch.equal(buffers[name], left[name]) for _, _, buffers in found for name in left)
        return same and torch.allclose(total, whole, rtol=tolerance, atol=tolerance, equal_nan=True)


def _beside(hyper: Params) -> Params:
    """Return another λ near this one, always the same."""
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn(value: Tensor) -> Tensor:
        return torch.randn(value.shape, generator=generator, dtype=torch.float32, device="cpu").to(value)

    return {name: value + 0.1 * (1 + value.abs()) * drawn(value) for name, value in hyper.items()}
