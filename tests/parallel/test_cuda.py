"""Models on a GPU: two ranks over gloo share one, and every message of a rank goes through nccl.

nccl takes one rank per GPU, so that with a single one a rank can only talk to itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SETTING = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as processes
import pactune as pt
from pactune.parallel import Ranks

def fit(parallel):
    torch.manual_seed(0)
    x = torch.randn(40, 5, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    model = torch.nn.Linear(5, 2).double().cuda()
    hyper = pt.WeightDecay(model)
    x, y = x.cuda(), y.cuda()
    problem = pt.Problem(model, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]),
                         loss=torch.nn.functional.cross_entropy)
    tuner = pt.Tuner(problem, inner=pt.Langevin(0.1, 500.0), inner_steps=6, chains=4, parallel=parallel,
                     outer=torch.optim.Adam(hyper.parameters(), lr=0.1), objective=pt.PACBayes(zeta=0.05))
    rows = tuner.fit(3, progress=False).rows
    return torch.tensor([[row["objective"], row["hypergradient_norm"], row["valid_risk"]] for row in rows])
"""

TWO_RANKS = """
def rank(number, store, whole):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    torch.testing.assert_close(fit(pt.Parallel()), whole, rtol=1e-9, atol=1e-12)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    processes.spawn(rank, (sys.argv[1], fit(None)), nprocs=2)
"""

MESSAGES = """
dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1,
                        device_id=torch.device("cuda", 0))
ranks = Ranks(device=torch.device("cuda", 0))
ranks.count = ranks.groups = 2  # so that it sends
ranks._all_ranks = ranks._own_group = dist.new_group([0])
ranks.shards = 2
tree = {"w": torch.arange(6.0, device="cuda").reshape(2, 3), "b": torch.ones(2, device="cuda")}
mean = ranks.mean([tree, {name: 3 * value for name, value in tree.items()}])
assert torch.equal(mean["w"], 2 * tree["w"]) and torch.equal(mean["b"], 2 * tree["b"])
assert float(ranks.mean_value(torch.tensor([1.0, 2.0], device="cuda"))) == 1.5
assert torch.equal(ranks.sum_shards(tree["w"].flatten()), tree["w"].flatten())
assert torch.equal(ranks.from_leader(tree)["w"], tree["w"])
assert ranks.numbers_from_leader({"risk": 0.25, "outer_step": 3}) == {"risk": 0.25, "outer_step": 3}
assert ranks.object_from_leader({"scores": [1, 2]}) == {"scores": [1, 2]}
assert ranks.any(True) and not ranks.any(False)
ranks.check_same({"seed": 0, "λ": tree})
dist.destroy_process_group()
"""


def run(code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SETTING + code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_ranks_share_a_gpu_over_gloo(tmp_path: Path) -> None:
    run(TWO_RANKS, tmp_path)


def test_messages_over_nccl(tmp_path: Path) -> None:
    run(MESSAGES, tmp_path)
