"""What `Parallel` says before anything runs, and how mini-batches are cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pactune as pt
from pactune.parallel import Ranks, share
from pactune.parallel.packing import digest, pack, unpack
from pactune.problem.data import Batch

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed_chains.py"


@pytest.mark.parametrize("settings", [{"shards": 0}, {"shards": 1.5}, {"shards": True}, {"timeout": 0}])
def test_wrong_numbers_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(pt.SettingError, match=f"`{next(iter(settings))}` must be"):
        pt.Parallel(**settings)


def test_what_is_no_parallel_is_refused(make: Callable[..., pt.Tuner]) -> None:
    with pytest.raises(pt.SettingError, match="`parallel` must be Parallel"):
        make(parallel="chains")


def test_shards_need_ranks(make: Callable[..., pt.Tuner]) -> None:
    with pytest.raises(pt.SettingError, match="`shards` must divide the number of ranks, 1, got 2"):
        make(parallel=pt.Parallel(shards=2))


def test_a_forgotten_process_group_is_noticed(make: Callable[..., pt.Tuner], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(pt.SettingError, match=r"one of 8 processes of torchrun.*init_process_group"):
        make(parallel=pt.Parallel())


def test_alone_it_is_a_single_process(make: Callable[..., pt.Tuner]) -> None:
    with_parallel, without = make(parallel=pt.Parallel()).fit(2), make().fit(2)
    assert [row["objective"] for row in with_parallel.rows] == [row["objective"] for row in without.rows]


def test_a_tuner_of_several_ranks_is_not_checked(
    make: Callable[..., pt.Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = make()
    monkeypatch.setattr(tuner.outer_run, "ranks", Ranks(0, 2))
    with pytest.raises(pt.SettingError, match="must run in one process"):
        pt.check_hypergradient(tuner)


def test_a_grid_runs_in_one_process(make: Callable[..., pt.Tuner], monkeypatch: pytest.MonkeyPatch) -> None:
    def build(seed: int) -> pt.Tuner:
        tuner = make(seed=seed)
        monkeypatch.setattr(tuner.outer_run, "ranks", Ranks(0, 2))
        return tuner

    with pytest.raises(pt.SettingError, match="without `parallel`"):
        pt.fit_grid(build, {"seed": [0, 1]}, outer_steps=1)


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("shards", [2, 3, 4])
def test_every_row_counts_once(rows: int, shards: int) -> None:
    batch = Batch({"x": torch.arange(rows), "y": [torch.arange(rows)]}, rows, torch.arange(rows) + 100)
    parts = [share(batch, shard, shards) for shard in range(shards)]
    assert sum(weight for _, weight in parts) == pytest.approx(1.0)
    counted = [part for part, weight in parts if weight > 0]
    assert torch.equal(torch.cat([part.data["x"] for part in counted]), torch.arange(rows))
    assert torch.equal(torch.cat([part.numbers for part in counted]), torch.arange(rows) + 100)
    for part, weight in parts:
        assert len(part.data["y"][0]) == part.rows >= 1
        assert weight in (part.rows / rows, 0.0)


def test_a_tensor_without_rows_cannot_be_cut() -> None:
    with pytest.raises(pt.DataError, match=r"of 4 rows cannot be shared .* shape \(3,\)"):
        share(Batch((torch.zeros(4, 2), torch.zeros(3)), 4), 0, 2)


def test_chains_are_dealt_out_to_groups_of_ranks() -> None:
    ranks = [Ranks(rank, ranks=6, shards=2).mine(8) for rank in range(6)]
    assert [list(mine) for mine in ranks[::2]] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert ranks[::2] == ranks[1::2]


def test_a_state_survives_its_journey() -> None:
    state = {"a": torch.randn(3, 2).T, "b": [torch.tensor(5), torch.tensor([True])], "c": (torch.zeros(0), "text", 7)}
    found = unpack(pack(state), state)
    assert torch.equal(found["a"], state["a"])
    assert found["b"] == state["b"]
    assert found["c"][1:] == ("text", 7)
    assert digest(found) == digest(state)


@pytest.mark.parametrize("other", [{"a": torch.zeros(3)}, {"a": torch.ones(2)}, {"b": torch.zeros(2)}, "text"])
def test_digests_tell_values_apart(other: Any) -> None:
    assert digest(other) != digest({"a": torch.zeros(2)})


def test_the_example_prints_under_torchrun_what_it_prints_alone() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    many = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert many.returncode == 0, many.stderr
    alone = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=True)
    assert many.stdout == alone.stdout
    assert many.stdout.count("outer step") == 2
