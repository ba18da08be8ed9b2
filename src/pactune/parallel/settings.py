"""`Parallel`: how a run is spread over the processes of `torch.distributed`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pactune.checks import POSITIVE, Rule, check_count, check_number
from pactune.errors import SettingError
from pactune.parallel.ranks import SINGLE_RANK, Ranks

__all__ = ["Parallel", "as_ranks"]


@dataclass(frozen=True)
class Parallel:
    """Spread the chains over the ranks of `torch.distributed`, and each mini-batch over `shards` of them.

    Start one process per device with `torchrun`, call `torch.distributed.init_process_group()`, build the same problem
    on every rank, and pass this to `Tuner`. With R ranks there are R/shards groups; group g runs the chains g,
    g + R/shards, and so on. The result is that of a single process up to rounding. A script that is started alone,
    without `torchrun`, runs in one process as if this were not there.

    Args:
        shards: how many ranks share the rows of every mini-batch of a chain. It divides the number of ranks. Both
            losses must be means over the rows, and a forward may neither mix rows, as BatchNorm does, nor be random.
        timeout: seconds after which a rank that waits for the others gives up.

    Example:
        >>> Parallel(shards=2)
        Parallel(shards=2, timeout=1800.0)
    """

    shards: int = 1
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        check_count("shards", self.shards)
        check_number("timeout", self.timeout, Rule("a positive number of seconds", POSITIVE.holds))

    def ranks(self, chains: int, device: torch.device) -> Ranks:
        """Return the ranks of this process's group.

        Raises:
            SettingError: there is no process group under `torchrun`, or the numbers do not fit.
        """
        rank, ranks = _place()
        if ranks % self.shards:
            raise SettingError(f"`shards` must divide the number of ranks, {ranks}, got {self.shards}")
        if chains < ranks // self.shards:
            raise SettingError(
                f"`chains` must be at least ranks/shards = {ranks // self.shards}, so that every rank has one, "
                f"got {chains}; raise `chains` or `shards`"
            )
        backend = dist.get_backend() if ranks > 1 else "gloo"
        if backend == "nccl" and device.type != "cuda":
            raise SettingError(f'the backend "nccl" needs the model on its GPU and it is on {device}; or use "gloo"')
        wire = torch.device("cpu") if backend == "gloo" else device  # gloo sends nothing from a GPU to one rank alone
        return Ranks(rank, ranks, self.shards, self.timeout, wire)


def _place() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingError(
            f"`parallel`: this is one of {os.environ['WORLD_SIZE']} processes of torchrun, but there is no process "
            "group; call torch.distributed.init_process_group() before the tuner is made"
        )
    return 0, 1


def as_ranks(parallel: Parallel | None, chains: int, device: torch.device) -> Ranks:
    """Return the ranks of a run; None runs by itself.

    Raises:
        SettingError: `parallel` is something else.
    """
    if parallel is None:
        return SINGLE_RANK
    if not isinstance(parallel, Parallel):
        raise SettingError(f"`parallel` must be Parallel(...) or None, got {parallel!r}")
    return parallel.ranks(chains, device)
