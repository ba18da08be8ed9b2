"""A sweep on a real Ray cluster of two nodes, one of which is killed on the way."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pactune as pt
from pactune.tracking import read_journal

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pactune[sweep]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Ray clusters need Linux or macOS"),
]

GRID = {"zeta": [0.0, 0.05], "seed": [0, 1]}
STEPS = 15
PAUSE = 0.015  # seconds per loss, so that a node can be killed in the middle


def data(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def tuner_of(zeta: float, seed: int, pause: float = 0.0) -> pt.Tuner:
    def slow_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        time.sleep(pause)
        return nn.functional.cross_entropy(output, target)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=data(12, 1), valid=data(10, 2), batch_size=5, loss=slow_loss)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    return pt.Tuner(problem, inner=pt.Adam(lr=0.05), inner_steps=2, outer=outer, objective=pt.PACBayes(zeta), seed=seed)


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    fast = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 500}
    shape = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 * 2**20}  # the GPUs are make-believe
    made = Cluster(initialize_head=True, head_node_args={**shape, "include_dashboard": False, "_system_config": fast})
    try:
        yield made, made.add_node(**shape)
    finally:
        ray.shutdown()
        made.shutdown()


def kill_amid(cluster: Any, node: Any, visits: Path, cells: Path, killed: list[str]) -> None:
    """Kill a node as soon as a cell on it has done three outer steps; note the cell."""
    while not killed:
        time.sleep(0.05)
        for visit in visits.glob("*"):
            journal = cells / visit.name / "journal.jsonl"
            there = visit.read_text().startswith(node.node_id)
            if there and journal.exists() and journal.read_text().count('"kind": "row"') >= 3:
                killed.append(visit.name)
                break
    cluster.remove_node(node, allow_graceful=False)


def values(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return [[value for name, value in row.items() if name != "seconds"] for row in rows]


def test_cells_of_a_killed_node_go_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    made, second = cluster
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    root, visits = tmp_path / "sweep", tmp_path / "visits"
    visits.mkdir()

    def build(zeta: float, seed: int) -> pt.Tuner:
        if ray.is_initialized():  # on a worker
            with (visits / f"zeta={zeta},seed={seed}").open("a") as file:
                print(ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"], file=file)
        return tuner_of(zeta, seed, PAUSE)

    settings: dict[str, Any] = {"outer_steps": STEPS, "run_dir": root, "test": data(9, 3)}
    killed: list[str] = []
    killer = threading.Thread(target=kill_amid, args=(made, second, visits, root / "cells", killed), daemon=True)
    killer.start()
    found = pt.sweep(build, GRID, address=made.address, cpus=0.5, gpus=0.5, retries=3, **settings)
    killer.join(timeout=30)

    assert found.status == "completed", [cell.error for cell in found.cells]
    places = {visit.name: [line.split() for line in visit.read_text().splitlines()] for visit in visits.glob("*")}
    first = [lines[0][0] for lines in places.values()]
    assert first.count(second.node_id) == 2  # half a GPU each: two cells per node at once
    assert {gpu for lines in places.values() for _, gpu in lines} == {"0"}
    assert places[killed[0]][0][0] == second.node_id
    assert places[killed[0]][-1][0] != second.node_id
    lines = read_journal(root / "cells" / killed[0])
    resumed = next(line for line in lines if line["kind"] == "resume")
    assert (
        2 <= resumed["outer_steps_done"] < STEPS
    )  # a row is written before its checkpoint, which the kill may prevent
    assert [line["outer_step"] for line in lines if line["kind"] == "row"] == list(range(1, STEPS + 1))

    for cell in found.cells:
        plain = tuner_of(**cell.values).fit(STEPS, test=data(9, 3), progress=False)  # type: ignore[arg-type]
        assert values(cell.rows) == values(plain.rows)
        assert values(cell.plain_rows) == values(plain.plain_rows)
        assert cell.ending["verdict"] == plain.verdict
        loaded = found.load(**cell.values)
        assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), plain.model.parameters(), strict=True))
    assert list(found.history.columns[:3]) == ["zeta", "seed", "outer_step"]
    assert len(found.history) == len(GRID["zeta"]) * len(GRID["seed"]) * STEPS

    def build_again(zeta: float, seed: int) -> pt.Tuner:
        raise AssertionError("a finished cell is run again")

    build_again.__qualname__ = build.__qualname__
    again = pt.sweep(build_again, GRID, **settings)
    assert again.status == "completed"
    assert again.history.equals(found.history)
