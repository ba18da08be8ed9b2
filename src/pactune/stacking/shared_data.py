"""Stacks of runs that share their data, so that a large data set is not copied for every run."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pactune.problem.data.joined import same_tensor, tensors_of
from pactune.rounds.plan import RoundRequest

__all__ = ["split_by_data"]

LARGE_COPY = 2**28  # bytes of a stack's copies of its data, from which runs are stacked by their data


def split_by_data(requests: Sequence[RoundRequest]) -> list[list[int]]:
    """Return the places of the requests, in groups that are stacked: all together, or those of the same data.

    A stack has one copy of a tensor that all its runs share, and one copy per run of any other. So runs are grouped by
    their data if the copies were large. The folds of many cells are an example.
    """
    together = [list(range(len(requests)))]
    if not all(request.plan.trajectory.problem.steady for request in requests):
        return together  # mini-batches are small
    data = [request.step_data_at(0)[0] for request in requests]
    tensors = [[*tensors_of(own.train), *tensors_of(own.valid)] for own in data]
    groups: list[list[int]] = []
    for place, own in enumerate(tensors):
        same = next((group for group in groups if _same(tensors[group[0]], own)), None)
        if same is None:
            groups.append([place])
        else:
            same.append(place)
    copied = sum(tensor.numel() * tensor.element_size() for own in tensors for tensor in own)
    return groups if 1 < len(groups) < len(requests) and copied > LARGE_COPY else together


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(same_tensor(a, b, compare=True) for a, b in zip(some, others, strict=True))
