"""A mini-batch shared between ranks: each computes its rows' part of a gradient, and sums are explicit.

With w_r the share of the rows that rank r has, ∇R = Σ_r w_r ∇R_r. `collect` is that sum. Its derivative with respect
to θ or λ is a sum over ranks again: the cotangent, which is the same everywhere, meets each rank's own part, and what
arrives at `spread`, through which θ and λ went to the ranks, is added up. Whatever is computed from the collected
gradient (the penalty, the step, Δ_t) is the same on every rank and needs no reduction.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pactune.data import Batch
from pactune.data.source import map_tensors
from pactune.errors import DataError, SettingError
from pactune.parallel.packing import flatten, unflatten
from pactune.parallel.team import Team
from pactune.problem import Problem
from pactune.trees import Params, clone, split

__all__ = ["check_shards", "collect", "share", "spread"]


def share(batch: Batch, shard: int, shards: int) -> tuple[Batch, float]:
    """Return the rows of one rank and their share of the mini-batch.

    A rank without rows gets one with share 0, so that all ranks run the same code.

    >>> share(Batch((torch.arange(5),), 5), 1, 2)
    (Batch(data=(tensor([2, 3, 4]),), rows=3, numbers=None), 0.6)

    Raises:
        DataError: the rows of the mini-batch cannot be told apart.
    """
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


def spread(team: Team, params: Params, hyper: Params) -> tuple[Params, Params]:
    """Return θ and λ as a rank's part of a risk sees them: derivatives that come back are summed over the ranks."""
    sent = cast(tuple[Tensor, ...], _Spread.apply(team, *params.values(), *hyper.values()))  # type: ignore[no-untyped-call]
    here, lambdas = split(sent, params, hyper)
    return here, lambdas


def collect(team: Team, parts: Params) -> Params:
    """Return the sum over the ranks of their parts of a gradient, differentiable to any order."""
    found = cast(tuple[Tensor, ...], _Collect.apply(team, *parts.values()))  # type: ignore[no-untyped-call]
    return split(found, parts)[0]


class _Spread(torch.autograd.Function):
    """The identity, whose derivative is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, team: Team, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.team = team
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_Collect.apply(ctx.team, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(_ctx: Any, _team: None, *tangents: Tensor) -> Any:
        return tuple(tangent.view_as(tangent) for tangent in tangents)


class _Collect(torch.autograd.Function):
    """The sum over the ranks, whose derivative is the identity: the cotangent is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, team: Team, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.team = team
        return _sum(team, tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_Spread.apply(ctx.team, *cotangents)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, _team: None, *tangents: Tensor) -> Any:
        return _sum(ctx.team, tangents)


def _sum(team: Team, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Sum all tensors in one message."""
    named = {str(i): tensor for i, tensor in enumerate(tensors)}
    return tuple(unflatten(team.sum_shards(flatten(named)), named).values())


def check_shards(problem: Problem, shards: int, *, stochastic: bool) -> None:
    """Try on the first mini-batch of each sample whether a risk is the mean of the risks of its parts.

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
    for role, source, risk in (
        ("train", problem.train, problem.train_risk),
        ("valid", problem.valid, problem.valid_risk),
    ):
        batch = source.first()
        parts = [(batch, 1.0)] + [share(batch, shard, shards) for shard in range(shards)]
        buffers = [clone(problem.buffers()) for _ in parts]
        with torch.no_grad():
            whole, *each = [
                weight * risk(problem.parameters(), problem.hyperparameters(), seen, part)
                for (part, weight), seen in zip(parts, buffers, strict=True)
            ]
        close = torch.allclose(torch.stack(each).sum(), whole, rtol=1e-3, atol=1e-5)
        moved = role == "train" and any(not torch.equal(b[n], buffers[0][n]) for b in buffers for n in b)
        if moved or not close:
            raise SettingError(
                f"`shards` must be 1, got {shards}: the {role} risk of a mini-batch is not the mean over its rows, or "
                "its buffers depend on them, as with BatchNorm, a weighted or a contrastive loss; spread chains "
                "instead of mini-batches, or use GroupNorm"
            )
