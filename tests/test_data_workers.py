"""Workers of a `DataLoader` read the rows, live as long as the run, and change no number."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import pactune as pt
from pactune.problem.data import Source, as_source
from pactune.streams import Streams
from tests.conftest import classes, linear

X, Y = classes(12, 1)
CPU = torch.device("cpu")


class Augmented(Dataset[Any]):
    """Rows with noise from torch's generator, and the number of the process that read them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> Any:
        return {"x": X[row] + 0.1 * torch.randn(4), "y": Y[row], "process": torch.tensor(os.getpid())}


class Streamed(IterableDataset[Any]):
    """The rows without end, each worker from another start."""

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        while True:
            for row in range(0 if worker is None else worker.id, 12, 2):
                yield {"x": X[row], "y": Y[row], "process": torch.tensor(os.getpid())}


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(11, -1, -1))

    def __len__(self) -> int:
        return 12


def loader(workers: int, **options: Any) -> DataLoader[Any]:
    kind = options.pop("kind", Augmented)
    return DataLoader(kind(), batch_size=4, num_workers=workers, **options)


def source(given: Any) -> Source:
    return as_source(given, role="train", device=CPU)


def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def tuner(train: Any, valid: Any, engine: str = "eager", **settings: Any) -> pt.Tuner:
    model = linear()
    hyper = pt.WeightDecay(model, init=0.05)
    problem = pt.Problem(model, hyper, train=train, valid=valid, train_loss=loss, valid_loss=loss)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    defaults = {"inner": pt.SGD(0.1), "inner_steps": 4, "objective": pt.PACBayes(0.05)}
    return pt.Tuner(problem, outer=outer, engine=engine, **(defaults | settings))


def numbers(given: pt.Tuner) -> pd.DataFrame:
    return given.fit(3, progress=False).history.drop(columns="seconds")


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_workers_change_no_number(engine: str) -> None:
    """Order and augmentation are functions of seed and step; two chains and K = 3 also read steps out of order."""
    settings = {"hypergradient": pt.Truncated(3), "chains": 2, "restart": True} if engine == "eager" else {}
    found, wanted = (
        numbers(tuner(loader(workers, shuffle=True), loader(workers), engine, **settings)) for workers in (2, 0)
    )
    pd.testing.assert_frame_equal(found, wanted, check_exact=True)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": Backwards()}], ids=list)
def test_workers_leave_the_global_generator_as_it_was(options: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        given = tuner(loader(2, **options), loader(2))
        torch.set_rng_state(before)
        given.fit(2, progress=False, test=loader(2))
        assert torch.equal(torch.get_rng_state(), before)


class NumpyNoise(Augmented):
    """Rows with noise from numpy's generator, which a `DataLoader` seeds in its workers."""

    def __getitem__(self, row: int) -> Any:
        return {"x": X[row] + 0.1 * torch.tensor(np.random.randn(4), dtype=X.dtype), "y": Y[row]}


def test_the_seeds_of_workers_are_functions_of_seed_and_role() -> None:
    def read(seed: int, role: str) -> Tensor:
        given = source(loader(2, kind=NumpyNoise))
        return torch.stack([given.batch(step, Streams(seed), role).data["x"] for step in range(3)][1:])

    torch.testing.assert_close(read(0, "train"), read(0, "train"), rtol=0, atol=0)
    assert not torch.equal(read(0, "train"), read(0, "valid"))
    assert not torch.equal(read(0, "train"), read(1, "train"))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": Backwards()}, {"kind": Streamed}], ids=list)
def test_the_same_workers_read_all_epochs(options: dict[str, Any]) -> None:
    given = source(loader(2, **options))
    read = [given.batch(step, Streams(0), "train").data["process"].unique().tolist() for step in range(15)]
    processes = {number for batch in read[1:] for number in batch} - {os.getpid()}
    assert len(processes) == 2  # five epochs, two workers
    assert all(os.getpid() not in batch for batch in read[1:])


@pytest.mark.parametrize("options", [{}, {"sampler": Backwards()}, {"kind": Streamed}], ids=["rows", "own", "stream"])
def test_workers_stop_at_once_when_the_collector_frees_their_data(options: dict[str, Any]) -> None:
    """A plain DataLoader waits 5 s for each worker there, because its queues are closed before it can use them."""
    given = source(loader(2, **options))
    for step in range(3):
        given.batch(step, Streams(0), "train")
    next(given.epoch())
    cycle: list[Any] = [given]
    cycle.append(cycle)
    begin = time.perf_counter()
    del given, cycle
    gc.collect()
    assert time.perf_counter() - begin < 4


def test_a_pass_over_all_rows_is_read_by_workers_that_stay() -> None:
    given = source(DataLoader(Big(), batch_size=600, num_workers=2))
    passes = [list(given.epoch()) for _ in range(3)]
    processes = {number for one in passes for batch in one for number in batch.data["process"].tolist()}
    assert len(processes) == 2
    assert os.getpid() not in processes
    plain = list(source(DataLoader(Big(), batch_size=600)).epoch())
    for one in passes:
        assert [batch.numbers.tolist() for batch in one] == [batch.numbers.tolist() for batch in plain]
        assert all(torch.equal(a.data["x"], b.data["x"]) for a, b in zip(one, plain, strict=True))


class Big(Dataset[Any]):
    """Rows for three batches of 600, with noise."""

    def __len__(self) -> int:
        return 1800

    def __getitem__(self, row: int) -> Any:
        return {"x": row + torch.rand(1), "process": torch.tensor(os.getpid())}


def test_steps_out_of_order_are_those_of_the_main_process() -> None:
    ahead, plain = source(loader(2, shuffle=True)), source(loader(0, shuffle=True))
    for step in (0, 1, 2, 2, 7, 3, 4, 5, 0, 1):
        found, wanted = (one.batch(step, Streams(3), "train") for one in (ahead, plain))
        assert torch.equal(found.data["x"], wanted.data["x"])
        assert torch.equal(found.numbers, wanted.numbers)  # type: ignore[arg-type]


def test_an_evaluation_does_not_disturb_the_training_reader_of_persistent_workers() -> None:
    """A loader with persistent workers has a single iterator, which a second pass starts anew."""
    given = source(loader(1, sampler=Backwards(), persistent_workers=True))
    wanted = [Y.flip(0)[4 * part : 4 * part + 4].tolist() for part in (0, 1, 2, 0, 1)]
    found = []
    for step in range(5):
        found.append(given.batch(step, Streams(0), "train").data["y"].tolist())
        assert sum(batch.rows for batch in given.epoch()) == 12
    assert found == wanted


class Broken(Augmented):
    def __getitem__(self, row: int) -> Any:
        if row == 9:
            raise OSError("disk")
        return super().__getitem__(row)


def test_an_error_in_a_worker_names_the_data() -> None:
    given = source(DataLoader(Broken(), batch_size=4, num_workers=2))
    with pytest.raises(pt.DataError, match="a Broken, read by workers, fails with OSError"):
        [given.batch(step, Streams(0), "train") for step in range(3)]
