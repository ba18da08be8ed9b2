"""The ranks of `torch.distributed` as one ranks: who runs which chains, and all that the ranks tell each other.

Every rank holds the same λ, makes the same outer steps and can compute any noise and any mini-batch by itself, since
all randomness is a function of the seed. So the ranks exchange only sums, the first chain, and the chains of a
checkpoint. The reductions are explicit: what `DistributedDataParallel` hooks into `.backward()` never sees the
derivatives of `torch.autograd.grad`.
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
    """The ranks of one run, seen from one of them; alone, every method does what a single process needs.

    Args:
        rank: this process.
        ranks: R.
        shards: how many ranks share a chain.
        timeout: seconds to wait for the others.
        device: where a message starts that is not a sum.
    """

    def __init__(
        self,
        rank: int = 0,
        ranks: int = 1,
        shards: int = 1,
        timeout: float = 1800.0,
        device: torch.device | None = None,
    ) -> None:
        self.rank, self.count, self.shards = rank, ranks, shards
        self.groups, self.group, self.shard = ranks // shards, rank // shards, rank % shards
        self._timeout = timedelta(seconds=timeout)
        self._device = device or torch.device("cpu")
        self._all: Any = None
        self._sharers: Any = None

    @property
    def leader(self) -> bool:
        """Whether this rank writes, reads and shows progress for all."""
        return self.rank == 0

    def mine(self, chains: int) -> range:
        """Return the numbers of the chains that this rank runs."""
        return range(self.group, chains, self.groups)

    # Beginning and end

    @contextmanager
    def session(self) -> Iterator[None]:
        """Talk to the other ranks inside; whoever leaves with an error hangs up, so that no rank waits for it."""
        if self.count == 1:
            yield
            return
        self._open()
        try:
            yield
        except BaseException:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Close the connections: a rank that waits for this one gets a `RankError`."""
        groups, self._all, self._sharers = (self._all, self._sharers), None, None
        for group in groups:
            if group is not None:
                dist.destroy_process_group(group)

    def _open(self) -> None:
        """Make process groups of our own, which can be closed without touching the user's."""
        if self._all is not None:
            return
        try:
            self._make_groups()
        except RuntimeError as error:
            raise RankError(f"rank {self.rank} waited in vain for the others to begin: {error}") from error

    def _make_groups(self) -> None:
        make = functools.partial(dist.new_group, timeout=self._timeout)
        self._all = make(list(range(self.count)))
        if self.shards > 1:
            firsts = range(0, self.count, self.shards)
            every = [make(list(range(first, first + self.shards))) for first in firsts]  # all ranks make all groups
            self._sharers = every[self.group]

    # Sums

    def sum_shards(self, flat: Tensor) -> Tensor:
        """Return the sum over the ranks that share this rank's chains."""
        if self.shards == 1:
            return flat
        total = flat.detach().clone()
        self._talk(lambda: dist.all_reduce(total, group=self._sharers))
        return total

    def mean(self, trees: Sequence[Params]) -> Params:
        """Return the mean over all chains of all ranks, given those of this rank; empty for none."""
        if not trees:
            return {}
        total = functools.reduce(add, trees)
        if self.groups == 1:
            return scale(1 / len(trees), total)
        if not total:
            return {}
        return unflatten(self._mean(flatten(total), len(trees)), total)

    def mean_value(self, values: Tensor) -> Tensor:
        """Return the mean of one number per chain over all chains of all ranks. Shape ()."""
        return values.mean() if self.groups == 1 else self._mean(values.sum().reshape(1), len(values)).reshape(())

    def _mean(self, total: Tensor, count: int) -> Tensor:
        """Divide the sum over all ranks by the sum of the counts; of the ranks that share a chain one contributes."""
        flat = torch.cat([total, total.new_tensor([float(count)])])
        if self.shard:
            flat = torch.zeros_like(flat)
        self._talk(lambda: dist.all_reduce(flat, group=self._all))
        return flat[:-1] / flat[-1]

    # Telling and asking

    def from_leader(self, state: T) -> T:
        """Return the first rank's tensors in place of this rank's, which are of the same shapes."""
        if self.groups == 1:
            return state
        flat = pack(state)
        self._talk(lambda: dist.broadcast(flat, src=0, group=self._all))
        return unpack(flat, state)

    def numbers_from_leader(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of a history with the first rank's numbers, so that all ranks have the same history."""
        floats = [name for name, value in row.items() if isinstance(value, float)]
        if self.count == 1 or not floats:
            return dict(row)
        told = torch.tensor([row[name] for name in floats], dtype=torch.float64, device=self._device)
        self._talk(lambda: dist.broadcast(told, src=0, group=self._all))
        return {**row, **dict(zip(floats, told.tolist(), strict=True))}

    def object_from_leader(self, value: Any) -> Any:
        """Return the first rank's object; tensors in it must be on the CPU."""
        told = [value]
        if self.count > 1:
            self._talk(lambda: dist.broadcast_object_list(told, src=0, group=self._all, device=self._device))
        return told[0]

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        if self.count == 1:
            return flag
        told = torch.tensor([int(flag)], device=self._device)
        self._talk(lambda: dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._all))
        return bool(told)

    def gather(self, mine: Sequence[T], chains: int) -> list[T]:
        """Return the states of all chains on the first rank, in order; elsewhere those that are there already."""
        if self.groups == 1 or self.shard:
            return list(mine)
        if not self.leader:
            for state in mine:
                flat = pack(state).to(self._device)
                self._talk(functools.partial(dist.send, flat, dst=0, group=self._all))
            return list(mine)
        return [mine[c // self.groups] if c % self.groups == 0 else self._receive(mine[0], c) for c in range(chains)]

    def _receive(self, like: T, chain: int) -> T:
        flat = torch.empty_like(pack(like), device=self._device)
        source = chain % self.groups * self.shards
        self._talk(lambda: dist.recv(flat, src=source, group=self._all))
        return unpack(flat, like)

    def check_same(self, said: Mapping[str, object]) -> None:
        """Raise on every rank where the ranks differ in something they must share.

        Raises:
            SettingError: names what differs.
        """
        if self.count == 1:
            return
        least = torch.tensor([digest(value) for value in said.values()], device=self._device)
        most = least.clone()
        self._talk(lambda: dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self._all))
        self._talk(lambda: dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._all))
        differing = [name for name, a, b in zip(said, least.tolist(), most.tolist(), strict=True) if a != b]
        if differing:
            raise SettingError(
                f"the ranks differ in {', '.join(differing)}; build the same problem on every rank: seed each alike "
                "with torch.manual_seed before data and model are made, or load the same files"
            )

    def _talk(self, words: Callable[[], Any]) -> None:
        if self._all is None:
            raise RankError(f"rank {self.rank} has left the run after an error; call `fit` anew on all ranks")
        try:
            words()
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} cannot reach the others: one of them failed, was interrupted or is slower than the "
                f"timeout of {self._timeout.total_seconds():g} s; its own error says why ({error})"
            ) from error


SINGLE_RANK = Ranks()
