"""Two real processes over gloo give what one process gives; a rank that leaves never makes the others wait."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pactune as pt
from pactune.tracking import read_journal

SCRIPT = Path(__file__).parent / "scenarios.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scenarios", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scenarios = _load()
ALONE_OR_FOUR = {"kill", "resume both"}  # these have processes of their own


def ends(folder: Path, ranks: int, names: list[str]) -> list[tuple[int, float]]:
    """Run the ranks; return the exit status of each and how many seconds after the first of them it ended."""
    command = [sys.executable, str(SCRIPT), str(folder), str(ranks), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    print(done.stderr)
    return [(status, seconds) for status, seconds in json.loads(done.stdout)]


def run(folder: Path, ranks: int, names: list[str]) -> list[dict[str, Any]]:
    """Return what every rank found."""
    assert [status for status, _ in ends(folder, ranks, names)] == [0] * ranks
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """All scenarios for two ranks, in one pair of processes."""
    return run(folder, 2, [*scenarios.SAME, *(name for name in scenarios.OTHERS if name not in ALONE_OR_FOUR)])


def assert_same(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    assert one["status"] == other["status"]
    assert len(one["rows"]) == len(other["rows"])
    for a, b in zip(one["rows"], other["rows"], strict=True):
        assert a == pytest.approx(b, rel=tolerance, abs=tolerance)
    torch.testing.assert_close(one["values"], other["values"], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", scenarios.SAME)
def test_two_ranks_give_the_result_of_one_process(name: str, found: list[dict[str, Any]]) -> None:
    first, second = (rank[name] for rank in found)
    assert_same(first, second, 0.0)
    assert_same(first, scenarios.SAME[name](False), 1e-6 if "float32" in name else 1e-10)


@pytest.mark.parametrize("name", ["resume chains", "resume shards"])
def test_a_run_of_two_ranks_resumes_bit_for_bit(name: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert_same(rank[name]["whole"], rank[name]["resumed"], 0.0)


def test_only_the_first_rank_writes_the_journal(found: list[dict[str, Any]], folder: Path) -> None:
    lines = read_journal(folder / "chains")
    assert [line["outer_step"] for line in lines if line["kind"] == "row"] == [1, 2, 3, 4]
    assert [line["kind"] for line in lines].count("start") == 1
    assert [line["status"] for line in lines if line["kind"] == "end"] == ["completed", "completed"]


def test_a_folder_that_cannot_be_used_ends_all_ranks(found: list[dict[str, Any]]) -> None:
    assert [rank["used folder"]["said"] for rank in found] == ["RunFolderError", "RankError"]


def test_one_process_goes_on_with_the_run_of_two(found: list[dict[str, Any]], folder: Path) -> None:
    alone = scenarios.tuner(None, inner=pt.Langevin(0.1, 50.0), chains=3, batch_size=5)
    result = alone.fit(6, run_dir=folder / "chains", resume=True)
    whole = scenarios.tuner(None, inner=pt.Langevin(0.1, 50.0), chains=3, batch_size=5)
    assert_same(scenarios.numbers(alone, result), scenarios.numbers(whole, whole.fit(6)), 1e-10)


def test_four_ranks_that_share_mini_batches_two_by_two(tmp_path: Path) -> None:
    ranks = run(tmp_path, 4, ["resume both"])
    alone = scenarios.tuner(None, inner=pt.Langevin(0.1, 50.0), chains=3, path_hypergradient=pt.Truncated(1))
    expected = scenarios.numbers(alone, alone.fit(4))
    for rank in ranks:
        assert_same(rank["resume both"]["whole"], rank["resume both"]["resumed"], 0.0)
        assert_same(rank["resume both"]["resumed"], expected, 1e-10)


@pytest.mark.parametrize("name", ["fail", "fail inside"])
def test_a_rank_that_fails_ends_the_others(name: str, found: list[dict[str, Any]]) -> None:
    first, second = (rank[name] for rank in found)
    assert first["said"].startswith("RankError: rank 0 cannot reach the others")
    assert second["said"] == "ValueError: only here"
    assert first["seconds"] < 15  # it did not wait for the timeout of 30 s
    assert first["next"] == second["next"] == "completed"


def test_one_interrupted_rank_ends_the_others(found: list[dict[str, Any]]) -> None:
    assert found[0]["interrupt"]["said"].startswith("RankError")
    assert found[1]["interrupt"]["said"] == "interrupted after 2"
    assert found[0]["interrupt"]["seconds"] < 15


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("interrupt all", "interrupted after 2"),
        ("stop", "completed after 2"),
        ("diverge", "DivergenceError after 0"),
    ],
)
def test_all_ranks_end_alike(name: str, said: str, found: list[dict[str, Any]]) -> None:
    assert [rank[name]["said"] for rank in found] == [said, said]


def test_an_interrupted_tuner_goes_on(found: list[dict[str, Any]]) -> None:
    assert [rank["interrupt all"]["next"] for rank in found] == [3, 3]


def test_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    (first, seconds), (second, _) = ends(tmp_path, 2, ["kill"])
    assert second < 0
    assert first == 0
    assert seconds < 15  # the timeout is 30 s
    said = torch.load(tmp_path / "rank-0.pt", weights_only=False)["kill"]["said"]
    assert said.startswith("RankError: rank 0 cannot reach the others")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("refuse BatchNorm", "BatchNorm"),
        ("refuse dropout", "a forward draws random numbers"),
        ("refuse sum", "the valid loss must be the mean over the rows"),
        ("refuse weighted", "the train risk of a mini-batch is not the mean over its rows"),
        ("refuse different", "the ranks differ in λ;"),
        ("refuse chains", "`chains` must be at least ranks/shards = 2"),
        ("refuse shards", "`shards` must divide the number of ranks, 2, got 3"),
    ],
)
def test_what_cannot_be_shared_is_refused_on_every_rank(name: str, said: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank[name]["said"].startswith("SettingError")
        assert said in rank[name]["said"]


def test_the_messages_are_those_of_the_documentation(found: list[dict[str, Any]]) -> None:
    m = n = 43 * 8  # bytes of θ and of λ
    one, steps = 8, 4
    sums = {name: [size for kind, size in sent if kind == "all_reduce"] for name, sent in found[0]["messages"].items()}
    told = {name: [size for kind, size in sent if kind == "broadcast"] for name, sent in found[0]["messages"].items()}
    flag, values = one, 2 * one  # a value travels with the number of chains
    assert sums["chains"] == [flag, values, values, n + one, n + one]
    assert sums["online"] == [flag, *[n + one] * steps, values, values, n + one]
    assert sums["shards"] == [flag, *[m] * (2 * steps), one + m + n]
    assert told["chains"][0] == m
    assert len(told["chains"]) == 2  # the first chain, and a row of the history
    assert len(told["shards"]) == 1  # the ranks that share a chain have it
    # K = 1: ∇R_T, ∇R_V, the derivatives of both, and one step gone back, which the first step of a round has not
    back = [m]
    assert sums["shards, K = 1"] == [
        flag,
        *[m, m, m + n, m + n],
        *[m, m, m + n, m + n, *back] * (steps - 1),
        one + m + n,
    ]
