"""`Parallel`: the setting that spreads a run over the processes of `torch.distributed`."""

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
    g + R/shards, and so on. The result equals that of a single process up to rounding. A script that is started
    without `torchrun` ignores this setting and runs in one process.

    Args:
        shards: how many ranks share the rows of every mini-batch of a chain. The number of ranks must be a multiple of
            it. Both losses must be means over the rows. A forward must not mix rows, as BatchNorm does, and must not be
            random.
        timeout: seconds after which a rank stops waiting for the others and raises a `RankError`.

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
        """Return the ranks of a run.

        Args:
            chains: the number of chains of the run.
            device: of the model.

        Raises:
            SettingError: there is no process group under `torchrun`, `shards` does not divide the number of ranks, some
                rank would have no chain, or the backend cannot send from this device.
        """
        rank, count = _rank_and_count()
        if count % self.shards:
            raise SettingError(f"`shards` must divide the number of ranks, {count}, got {self.shards}")
        if chains < count // self.shards:
            raise SettingError(
                f"`chains` must be at least ranks/shards = {count // self.shards}, so that every rank has one, "
                f"got {chains}; raise `chains` or `shards`"
            )
        backend = dist.get_backend() if count > 1 else "gloo"
        if backend == "nccl" and device.type != "cuda":
            raise SettingError(f'the backend "nccl" needs the model on its GPU and it is on {device}; or use "gloo"')
        sent_from = torch.device("cpu") if backend == "gloo" else device  # gloo cannot send a GPU's tensor to one rank
        return Ranks(rank, count, self.shards, self.timeout, sent_from)


def _rank_and_count() -> tuple[int, int]:
    """Return the number of this process and the number of all processes; (0, 1) without a process group.

    Raises:
        SettingError: `torchrun` started several processes, but there is no process group.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingError(
            f"`parallel`: this is one of {os.environ['WORLD_SIZE']} processes of torchrun, but there is no process "
            "group; call torch.distributed.init_process_group() before the tuner is made"
        )
    return 0, 1


def as_ranks(parallel: Parallel | None, chains: int, device: torch.device) -> Ranks:
    """Return the ranks of a run; without `parallel` it is a single rank.

    Raises:
        SettingError: `parallel` is neither a `Parallel` nor None, or `Parallel.ranks` raises.
    """
    if parallel is None:
        return SINGLE_RANK
    if not isinstance(parallel, Parallel):
        raise SettingError(f"`parallel` must be Parallel(...) or None, got {parallel!r}")
    return parallel.ranks(chains, device)
