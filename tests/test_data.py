"""Mini-batches: every kind of data, cycled forever, each row once per epoch, in an order that the seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import pactune as pt
from pactune.problem.data import Source, as_source
from pactune.streams import Streams

ROWS, SIZE = 10, 4
PER_EPOCH = 3
CPU = torch.device("cpu")
X = torch.arange(ROWS, dtype=torch.float32)


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(X)


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS - 1, -1, -1))

    def __len__(self) -> int:
        return ROWS


class EvenOnly(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(0, ROWS, 2))


class Noisy(Dataset[Tensor]):
    """Rows with an augmentation that draws from torch's global generator."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Tensor:
        return X[index] + 100 * torch.rand(())


def source(data: Any, **options: Any) -> Source:
    return as_source(data, role="train", device=CPU, **options)


def rows_of(given: Source, steps: int, seed: int = 0) -> list[list[float]]:
    """Return the numbers of the batches at steps 0, 1, …"""
    found = []
    for step in range(steps):
        data = given.batch(step, Streams(seed), "train").data
        found.append((data if isinstance(data, Tensor) else data[0]).tolist())
    return found


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X), batch_size=None if "batch_sampler" in options else SIZE, **options)


KINDS: dict[str, Any] = {
    "tensor": lambda: source(X, batch_size=SIZE),
    "tensors": lambda: source((X, X), batch_size=SIZE),
    "data set": lambda: source(TensorDataset(X), batch_size=SIZE),
    "shuffled loader": lambda: source(loader(shuffle=True)),
    "sequential loader": lambda: source(loader()),
    "custom sampler": lambda: source(loader(sampler=Backwards())),
    "subset sampler": lambda: source(loader(sampler=SubsetRandomSampler(range(ROWS)))),
    "batch sampler": lambda: source(
        DataLoader(TensorDataset(X), batch_sampler=BatchSampler(SequentialSampler(X), SIZE, drop_last=False))
    ),
    "iterable": lambda: source(DataLoader(Endless(), batch_size=SIZE)),
}
SHUFFLED = ["tensor", "tensors", "data set", "shuffled loader", "subset sampler"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("rng_untouched")
def test_every_epoch_has_each_row_once_and_epochs_go_on_forever(kind: str) -> None:
    batches = rows_of(KINDS[kind](), 4 * PER_EPOCH)
    for epoch in range(4):
        rows = [row for batch in batches[epoch * PER_EPOCH : (epoch + 1) * PER_EPOCH] for row in batch]
        assert sorted(rows) == X.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_known(kind: str) -> None:
    assert KINDS[kind]().rows == ROWS
    assert sorted(x for batch in KINDS[kind]().epoch() for x in _numbers(batch)) == X.tolist()
    assert sorted(x for batch in KINDS[kind]().evaluation() for x in _numbers(batch)) == X.tolist()


def _numbers(batch: Any) -> list[float]:
    return (batch.data if isinstance(batch.data, Tensor) else batch.data[0]).tolist()


@pytest.mark.parametrize("kind", SHUFFLED)
def test_order_changes_with_epoch_and_seed_alone(kind: str) -> None:
    first = rows_of(KINDS[kind](), 2 * PER_EPOCH)
    torch.rand(7)  # the global generator stands elsewhere, and it must not matter
    assert rows_of(KINDS[kind](), 2 * PER_EPOCH) == first
    assert rows_of(KINDS[kind](), 2 * PER_EPOCH, seed=1) != first
    assert first[:PER_EPOCH] != first[PER_EPOCH:]


def test_train_and_validation_orders_differ() -> None:
    given = source(X, batch_size=SIZE)
    train = given.batch(0, Streams(0), "train").data[0]
    assert not torch.equal(train, given.batch(0, Streams(0), "valid").data[0])


def test_orders_that_are_given_are_kept() -> None:
    assert rows_of(KINDS["sequential loader"](), 1) == [X[:SIZE].tolist()]
    assert rows_of(KINDS["custom sampler"](), 1) == [X.flip(0)[:SIZE].tolist()]
    assert rows_of(source(loader(sampler=EvenOnly(X))), 2) == [[0, 2, 4, 6], [8]]
    short = RandomSampler(X, num_samples=3)
    assert [len(batch) for batch in rows_of(source(loader(sampler=short)), 2)] == [3, 3]


def test_sampling_with_replacement_goes_on_from_epoch_to_epoch() -> None:
    sampler = WeightedRandomSampler(torch.ones(ROWS), 200)
    rows = [r for batch in rows_of(source(loader(sampler=sampler)), 100) for r in batch]
    assert rows[:200] != rows[200:]
    assert set(rows) == set(X.tolist())


def test_drop_last_drops_the_short_batch_but_evaluates_all() -> None:
    given = source(loader(shuffle=True, drop_last=True))
    assert [len(batch) for batch in rows_of(given, 4)] == [SIZE] * 4
    assert sum(batch.rows for batch in given.epoch()) == ROWS


@pytest.mark.usefixtures("rng_untouched")
def test_mini_batches_of_one_size_leave_out_other_rows_in_every_epoch() -> None:
    given = source((torch.arange(10.0),)).with_mini_batches(4)
    batches = rows_of(given, 20)
    assert {len(batch) for batch in batches} == {4}
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        assert len({*first, *second}) == 8  # an epoch of two batches
    assert len({row for batch in batches for row in batch}) == 10
    assert sum(batch.rows for batch in given.evaluation()) == 10
    assert {len(batch) for batch in rows_of(given.subset(torch.arange(7)), 6)} == {4}
    assert {len(batch) for batch in rows_of(given.subset(torch.arange(3)), 2)} == {3}
    assert {len(batch) for batch in rows_of(given.with_mini_batches(20), 2)} == {10}


def test_a_loader_keeps_its_own_mini_batches() -> None:
    own = source(loader(sampler=Backwards()))
    assert own.with_mini_batches(2) is own


def test_augmentation_is_a_function_of_seed_and_step() -> None:
    given = source(Noisy(), batch_size=SIZE)
    first = rows_of(given, 4)
    assert rows_of(source(Noisy(), batch_size=SIZE), 4) == first
    assert rows_of(given, 4, seed=1) != first
    parts = [round(x % 1, 6) for batch in first for x in batch]
    assert len(set(parts)) == len(parts)


def test_rows_are_known_by_number() -> None:
    for given in (source(X, batch_size=SIZE), source(TensorDataset(X), batch_size=SIZE), source(loader(shuffle=True))):
        batch = given.batch(1, Streams(0), "train")
        assert batch.numbers is not None
        assert batch.data[0].tolist() == X[batch.numbers].tolist()
    assert KINDS["custom sampler"]().batch(0, Streams(0), "train").numbers is None


def test_own_sampler_cannot_go_back() -> None:
    given = KINDS["custom sampler"]()
    rows_of(given, 3)
    with pytest.raises(pt.DataError, match="step 1 cannot be replayed after step 2"):
        given.batch(1, Streams(0), "train")
    assert rows_of(given, 1) == [X.flip(0)[:SIZE].tolist()]


def test_lanes_of_an_own_sampler_are_independent() -> None:
    given = KINDS["iterable"]()
    rows_of(given, 2)
    other = given.batch(0, Streams(0), "train", reader="plain")
    assert other.data.tolist() == X[:SIZE].tolist()
    assert given.batch(2, Streams(0), "train").data.tolist() == X[2 * SIZE :].tolist()


def test_nested_batches_move_and_count() -> None:
    rows = [{"x": torch.ones(2), "more": (torch.zeros(1), "text")} for _ in range(5)]

    class Nested(Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return rows[index]

    batch = source(Nested(), batch_size=2).batch(0, Streams(0), "train")
    assert batch.rows == 2
    assert batch.data["x"].shape == (2, 2)
    assert next(source(DataLoader(Nested(), batch_size=3, sampler=SequentialSampler(rows))).epoch()).rows == 3


@pytest.mark.parametrize("kind", ["data set", "loader"])
def test_same_order_gives_the_same_result(kind: str, make: Any, classes: Any) -> None:
    x, y = classes(12, 1)
    data: Any = TensorDataset(x, y)
    sizes = {"batch_size": 5}
    if kind == "loader":
        data, sizes = DataLoader(data, batch_size=5, shuffle=True), {}
    ours = make(train=(x, y), batch_size=5).fit(3, progress=False).history.drop(columns="seconds")
    other = make(train=data, **sizes).fit(3, progress=False).history.drop(columns="seconds")
    assert ours.equals(other)
