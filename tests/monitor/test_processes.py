"""Two processes under DDP measure what one process measures on both halves together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="gloo is not built in"
)


def rows(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def train(model: nn.Module, half: slice, *, stored: bool, average: bool) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=optimizer, average=average)
    for t in range(4):
        (x, y), (xv, yv) = rows(t), rows(100 + t)
        optimizer.zero_grad()
        F.cross_entropy(model(x[half].double()), y[half]).backward()
        batch = None if stored else (x[half].double(), y[half])
        monitor.step(batch, (xv[half].double(), yv[half]))
        optimizer.step()
    return monitor.regularizer


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    half = slice(0, 4) if rank == 0 else slice(4, 8)
    for stored in (True, False):
        wrapped = nn.parallel.DistributedDataParallel(network())
        print(repr(train(wrapped, half, stored=stored, average=True)))
    torch.distributed.destroy_process_group()


def test_ddp_with_averaged_gradients_equals_one_process(tmp_path: Path) -> None:
    commands = [[sys.executable, __file__, str(rank), str(tmp_path)] for rank in range(2)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    printed = [process.communicate(timeout=60)[0].split() for process in processes]
    alone = train(network(), slice(None), stored=True, average=False)
    assert [len(values) for values in printed] == [2, 2]
    assert [float(value) for values in printed for value in values] == pytest.approx([alone] * 4, rel=1e-12)


if __name__ == "__main__":
    work(int(sys.argv[1]), Path(sys.argv[2]))
