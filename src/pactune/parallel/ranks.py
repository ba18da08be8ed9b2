"""The ranks of one run: which rank runs which chains, and all messages between ranks.

Every rank holds the same λ and makes the same outer steps. All randomness is a function of the seed, so a rank can
compute any noise and any mini-batch by itself. The ranks therefore exchange only sums, the first chain, and the chains
of a checkpoint. All reductions are explicit, because `DistributedDataParallel` reduces gradients in hooks of
`.backward()`, and these hooks do not see the derivatives that `torch.autograd.grad` returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pactune.errors import RankError, SettingError
from pactune.parallel.packing import digest, flatten, pack, unflatten, unpack
from pactune.trees import Params, add, scale

__all__ = ["SINGLE_RANK", "Ranks"]

T = TypeVar("T")


class Ranks:
    """The ranks of one run, as one of them sees them. With one rank no method sends a message.

    The ranks form `count / shards` groups. The ranks of a group run the same chains, and each of them computes its
    share of the rows of every mini-batch.

    Args:
        rank: the number of this process.
        count: the number of ranks, R.
        shards: the number of ranks in a group.
        timeout: seconds to wait for the other ranks.
        device: the device of the tensors that are sent, except for sums; None is the CPU.

    Attributes:
        groups: the number of groups.
        group: the group of this rank.
        shard: the number of this rank within its group.
    """

    def __init__(
        self,
        rank: int = 0,
        count: int = 1,
        shards: int = 1,
        timeout: float = 1800.0,
        device: torch.device | None = None,
    ) -> None:
        self.rank, self.count, self.shards = rank, count, shards
        self.groups, self.group, self.shard = count // shards, rank // shards, rank % shards
        self._timeout = timedelta(seconds=timeout)
        self._device = device or torch.device("cpu")
        self._all_ranks: Any = None  # process group of all ranks
        self._own_group: Any = None  # process group of the ranks that run the same chains

    @property
    def leader(self) -> bool:
        """True on rank 0, which reads and writes files and shows progress for all ranks."""
        return self.rank == 0

    def own_chains(self, chains: int) -> range:
        """Return the numbers of the chains that this rank runs."""
        return range(self.group, chains, self.groups)

    # Beginning and end

    @contextmanager
    def session(self) -> Iterator[None]:
        """Connect to the other ranks. A rank that leaves with an error disconnects, so that no other waits for it."""
        if self.count == 1:
            yield
            return
        self._connect()
        try:
            yield
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close the connections. Every rank that waits for this one gets a `RankError`."""
        groups, self._all_ranks, self._own_group = (self._all_ranks, self._own_group), None, None
        for group in groups:
            if group is not None:
                dist.destroy_process_group(group)

    def _connect(self) -> None:
        """Make process groups for this run, so that closing them leaves the user's process group open."""
        if self._all_ranks is not None:
            return
        try:
            self._make_groups()
        except RuntimeError as error:
            raise RankError(f"rank {self.rank} waited in vain for the others to begin: {error}") from error

    def _make_groups(self) -> None:
        make = functools.partial(dist.new_group, timeout=self._timeout)
        self._all_ranks = make(list(range(self.count)))
        if self.shards > 1:
            firsts = range(0, self.count, self.shards)
            # `new_group` must be called on every rank for every group, also for those of other ranks.
            groups = [make(list(range(first, first + self.shards))) for first in firsts]
            self._own_group = groups[self.group]

    # Sums and means

    def sum_shards(self, flat: Tensor) -> Tensor:
        """Return the sum over the ranks of this rank's group."""
        if self.shards == 1:
            return flat
        total = flat.detach().clone()
        self._communicate(lambda: dist.all_reduce(total, group=self._own_group))
        return total

    def mean(self, trees: Sequence[Params]) -> Params:
        """Return the mean over all chains of all ranks; empty if `trees` is.

        Args:
            trees: one per chain of this rank.
        """
        if not trees:
            return {}
        if self.count == 1 and len(trees) == 1:
            return trees[0]
        total = functools.reduce(add, trees)
        if self.groups == 1:
            return scale(1 / len(trees), total)
        if not total:
            return {}
        return unflatten(self._mean(flatten(total), len(trees)), total)

    def mean_value(self, values: Tensor) -> Tensor:
        """Return the mean over all chains of all ranks. Shape ().

        Args:
            values: one number per chain of this rank. Shape (chains of this rank,).
        """
        if self.count == 1 and len(values) == 1:
            return values[0]
        return values.mean() if self.groups == 1 else self._mean(values.sum().reshape(1), len(values)).reshape(())

    def _mean(self, total: Tensor, count: int) -> Tensor:
        """Return the sum of all totals over the sum of all counts; one rank of each group contributes."""
        flat = torch.cat([total, total.new_tensor([float(count)])])
        if self.shard:
            flat = torch.zeros_like(flat)
        self._communicate(lambda: dist.all_reduce(flat, group=self._all_ranks))
        return flat[:-1] / flat[-1]

    # Values of rank 0 and of all ranks

    def from_leader(self, state: T) -> T:
        """Return the state of rank 0.

        Args:
            state: of this rank; its tensors have the shapes and dtypes of those on rank 0.
        """
        if self.groups == 1:
            return state
        flat = pack(state)
        self._communicate(lambda: dist.broadcast(flat, src=0, group=self._all_ranks))
        return unpack(flat, state)

    def numbers_from_leader(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of a history with the floats of rank 0, so that all ranks have the same history."""
        names = [name for name, value in row.items() if isinstance(value, float)]
        if self.count == 1 or not names:
            return dict(row)
        numbers = torch.tensor([row[name] for name in names], dtype=torch.float64, device=self._device)
        self._communicate(lambda: dist.broadcast(numbers, src=0, group=self._all_ranks))
        return {**row, **dict(zip(names, numbers.tolist(), strict=True))}

    def object_from_leader(self, value: Any) -> Any:
        """Return the object of rank 0. Tensors in it must be on the CPU."""
        objects = [value]
        if self.count > 1:
            self._communicate(
                lambda: dist.broadcast_object_list(objects, src=0, group=self._all_ranks, device=self._device)
            )
        return objects[0]

    def any(self, flag: bool) -> bool:
        """Return True if the flag is True on at least one rank."""
        if self.count == 1:
            return flag
        largest = torch.tensor([int(flag)], device=self._device)
        self._communicate(lambda: dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._all_ranks))
        return bool(largest)

    def gather(self, states: Sequence[T], chains: int) -> list[T]:
        """Return the states of all chains in order on rank 0, and `states` on every other rank.

        Args:
            states: of the chains of this rank.
            chains: the number of chains of all ranks.
        """
        if self.groups == 1 or self.shard:
            return list(states)
        if not self.leader:
            for state in states:
                flat = pack(state).to(self._device)
                self._communicate(functools.partial(dist.send, flat, dst=0, group=self._all_ranks))
            return list(states)
        own = dict(zip(self.own_chains(chains), states, strict=True))
        return [own[chain] if chain in own else self._receive(states[0], chain) for chain in range(chains)]

    def _receive(self, like: T, chain: int) -> T:
        """Return the state of a chain that another rank sends."""
        flat = torch.empty_like(pack(like), device=self._device)
        source = chain % self.groups * self.shards
        self._communicate(lambda: dist.recv(flat, src=source, group=self._all_ranks))
        return unpack(flat, like)

    def check_same(self, values: Mapping[str, object]) -> None:
        """Raise on every rank if a value is not the same on all ranks.

        Raises:
            SettingError: names the values that differ.
        """
        if self.count == 1:
            return
        least = torch.tensor([digest(value) for value in values.values()], device=self._device)
        most = least.clone()
        self._communicate(lambda: dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self._all_ranks))
        self._communicate(lambda: dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._all_ranks))
        differing = [name for name, a, b in zip(values, least.tolist(), most.tolist(), strict=True) if a != b]
        if differing:
            raise SettingError(
                f"the ranks differ in {', '.join(differing)}; build the same problem on every rank: seed each alike "
                "with torch.manual_seed before data and model are made, or load the same files"
            )

    def _communicate(self, operation: Callable[[], Any]) -> None:
        """Call a function of `torch.distributed`, and raise a `RankError` if the other ranks do not answer."""
        if self._all_ranks is None:
            raise RankError(f"rank {self.rank} has left the run after an error; call `fit` anew on all ranks")
        try:
            operation()
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} cannot reach the others: one of them failed, was interrupted or is slower than the "
                f"timeout of {self._timeout.total_seconds():g} s; its own error says why ({error})"
            ) from error


SINGLE_RANK = Ranks()
