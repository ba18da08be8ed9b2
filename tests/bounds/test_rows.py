"""A row is recognised whatever its type, shape and rounding; repeated and changing rows are refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.errors import CertificateError
from pactune.problem.provenance import DataMark, Provenance

ROWS = 200
CHAIN = CoupledChains(0.1, 10.0, 2)


def drawn(columns: int, seed: int = 0, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator), torch.randint(0, 2, (rows,), generator=generator)


def hold_out(train: Any, fresh: Any, columns: int = 4) -> bounds.Certificate:
    """Certify on rows of which the model is said to have seen `train` only."""
    train = train if isinstance(train, DataMark) else DataMark("train", train)
    model = nn.Sequential(nn.Flatten(), nn.Linear(columns, 2)).double()
    provenance = Provenance().touch("model", train).touch("hyper")
    return pt.certify(bounds.HoldOut(model, fresh, provenance))


CHANGES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "int32 labels": lambda x, y: (x, y.int()),
    "other labels": lambda x, y: (x, 1 - y),
    "float64": lambda x, y: (x.double(), y),
    "float32": lambda x, y: (x.double().float(), y),
    "float16": lambda x, y: (x.half(), y),
    "bfloat16": lambda x, y: (x.bfloat16(), y),
    "bfloat16 and scaled": lambda x, y: (x.bfloat16().float() * (1 + 3e-7), y),
    "scaled up": lambda x, y: (x * (1 + 2e-7), y),
    "scaled down": lambda x, y: (x * (1 - 4e-7), y),
    "divided and multiplied": lambda x, y: (x / 3 * 3, y),
    "shifted": lambda x, y: (x + 1e-7, y),
    "noisy": lambda x, y: (x + 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(9)), y),
    "another order": lambda x, y: (x.flip(0), y.flip(0)),
    "a few": lambda x, y: (torch.cat([x[:2], drawn(x.shape[1], 5)[0]]), torch.cat([y[:2], y])),
    "as images": lambda x, y: (x.reshape(len(x), 1, 2, -1), y),
    "columns in another memory order": lambda x, y: (x.t().contiguous().t(), y),
}


@pytest.mark.parametrize("columns", [2, 4, 50])
@pytest.mark.parametrize("change", CHANGES)
def test_a_training_row_is_recognised(change: str, columns: int) -> None:
    train = drawn(columns)
    x, y = CHANGES[change](*train)
    with pytest.raises(CertificateError, match=r"fresh sample: train .* shares"):
        hold_out(train, (x.to(x.dtype), y), columns)


@pytest.mark.parametrize("columns", [1, 2, 3, 50])
def test_other_rows_are_told_apart(columns: int) -> None:
    x, y = drawn(columns)
    fresh, labels = drawn(columns, 1)
    assert hold_out((x.double(), y), (fresh.double(), labels), columns).n == ROWS


def test_a_column_of_large_numbers_hides_nothing_and_joins_nothing() -> None:
    """A time stamp of 1.7e9 beside numbers around 1: rows differ by the small numbers, and copies are still found."""
    x, y = drawn(3, rows=600)
    x = torch.cat([x.double(), 1.7e9 + torch.arange(600.0, dtype=torch.float64)[:, None]], 1)
    shuffled = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    train, fresh = x[shuffled[:300]], x[shuffled[300:]]
    assert hold_out((train, y[:300]), (fresh, y[:300])).n == 300
    with pytest.raises(CertificateError, match="shares 300 rows"):
        hold_out((train, y[:300]), (train.float().double(), y[:300]))


def test_rows_of_other_widths_cannot_be_compared() -> None:
    with pytest.raises(CertificateError, match="cannot be told from"):
        hold_out(drawn(5), (drawn(4, 1)[0].double(), drawn(4, 1)[1]))


# Repeated rows


@pytest.mark.parametrize("noise", [0.0, 1e-8])
@pytest.mark.parametrize("side", ["hold-out", "train side"])
def test_repeated_rows_are_no_sample(side: str, noise: float) -> None:
    x, y = drawn(4, rows=12)
    x, y = x.repeat(10, 1), y.repeat(10)
    x = x + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    model = nn.Linear(4, 2).double()
    claim: bounds.Claim = bounds.HoldOut(model, (x.double(), y), Provenance().touch("model").touch("hyper"))
    if side == "train side":
        valid = (drawn(4, 7)[0].double(), drawn(4, 7)[1])
        hyper = pt.WeightDecay(model)
        problem = pt.Problem(model, hyper, train=(x.double(), y), valid=valid, loss=F.cross_entropy)
        claim = bounds.TrainSide(problem, CHAIN, Provenance().touch("prior hyper"))
    with pytest.raises(CertificateError, match=r"independent rows: 120 rows of .* equal another"):
        pt.certify(claim)


def test_identifiers_say_that_equal_rows_are_different_observations() -> None:
    x, y = torch.ones(30, 4, dtype=torch.float64), drawn(4, rows=30)[1]
    with pytest.raises(CertificateError, match="independent rows"):
        hold_out(drawn(4), (x, y))
    train = DataMark("train", drawn(4), rows=range(ROWS))
    assert hold_out(train, DataMark("fresh", (x, y), rows=range(ROWS, ROWS + 30))).n == 30
    with pytest.raises(CertificateError, match="shares 10 rows"):
        hold_out(train, DataMark("fresh", (x, y), rows=np.arange(ROWS - 10, ROWS + 20)))
    with pytest.raises(CertificateError, match="independent rows: 2 rows"):
        hold_out(train, DataMark("fresh", (x, y), rows=[1000, *range(1000, 1029)]))
    with pytest.raises(CertificateError, match="has identifiers and train has none"):
        hold_out(drawn(4), DataMark("fresh", (x, y), rows=range(30)))


def test_a_problem_takes_identifiers() -> None:
    x, y = torch.randint(0, 2, (60, 2), generator=torch.Generator().manual_seed(0)).float(), drawn(2, rows=60)[1]
    model = nn.Linear(2, 2)
    parts = [DataMark("", (x[a:b], y[a:b]), rows=range(a, b)) for a, b in ((0, 30), (30, 60))]
    problem = pt.Problem(model, pt.WeightDecay(model), train=parts[0], valid=parts[1], loss=F.cross_entropy)
    claim = bounds.TrainSide(problem, CHAIN, Provenance().touch("prior hyper"), models=2)
    assert pt.certify(claim).n == 30
    fold = problem.subset(torch.arange(3, 9), torch.arange(5))
    assert [mark.identifiers for mark in fold.sample_ids] == [list(range(3, 9)), list(range(30, 35))]


# Rows that change when they are read


class Augmented(Dataset[Any]):
    """Rows with noise from one of three generators."""

    def __init__(self, noise: Callable[[int], Tensor]) -> None:
        self.rows, self.noise = drawn(4), noise

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.rows[0][index] + self.noise(index), self.rows[1][index]


NOISE: dict[str, Callable[[int], Tensor]] = {
    "torch": lambda _: 0.1 * torch.randn(4),
    "numpy": lambda _: torch.as_tensor(0.1 * np.random.randn(4), dtype=torch.float32),
    "python": lambda _: torch.full((4,), random.gauss(0.0, 0.1)),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("kind", ["dataset", "loader", "sampler", "collate"])
def test_augmented_rows_need_identifiers(noise: str, kind: str) -> None:
    data = Augmented(NOISE[noise] if kind != "collate" else lambda _: torch.zeros(4))
    train: Any = {
        "dataset": lambda: data,
        "loader": lambda: DataLoader(data, batch_size=16, shuffle=True),
        "sampler": lambda: DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(range(ROWS))),
        "collate": lambda: DataLoader(data, batch_size=16, collate_fn=lambda rows: shaken(rows, NOISE[noise])),
    }[kind]()
    x, y = data.rows
    with pytest.raises(CertificateError, match="change when they are read again"):
        hold_out(train, (x.double(), y))
    if kind == "dataset":
        with pytest.raises(CertificateError, match="shares 200 rows"):
            hold_out(DataMark("train", data, rows=range(ROWS)), DataMark("fresh", (x.double(), y), rows=range(ROWS)))


def shaken(rows: list[tuple[Tensor, Tensor]], noise: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
    return torch.stack([x + noise(0) for x, _ in rows]), torch.stack([y for _, y in rows])


def test_rows_that_do_not_change_are_recognised_in_any_container() -> None:
    x, y = drawn(4)
    fixed = Augmented(lambda _: torch.zeros(4))
    for train in (
        TensorDataset(x, y),
        fixed,
        DataLoader(fixed, batch_size=16, shuffle=True),
        DataLoader(fixed, batch_size=7, sampler=SubsetRandomSampler(range(ROWS))),
    ):
        with pytest.raises(CertificateError, match=r"fresh sample: train .* shares 200 rows"):
            hold_out(train, (x.double(), y))
    with pytest.raises(CertificateError, match="change when they are read again"):
        hold_out(DataLoader(fixed, sampler=WeightedRandomSampler([1.0] * ROWS, 50)), (x.double(), y))


def test_a_mark_without_its_data_still_knows_its_rows() -> None:
    train, fresh = DataMark("train", drawn(4)).without_data(), DataMark("fresh", drawn(4, 1))
    assert train.source is None
    assert train.shared(fresh) == 0
    assert train.shared(DataMark("again", drawn(4))) == ROWS


def test_a_dense_line_is_told_from_its_copy() -> None:
    """Thousands of numbers on a line meet by chance; that is no copy, and a copy is far more."""
    generator = torch.Generator().manual_seed(0)
    first, second = (290 + torch.randn(2, 3000, 1, generator=generator, dtype=torch.float64)).unbind()
    labels = torch.zeros(3000)
    train = DataMark("train", (first, labels))
    assert train.shared(DataMark("fresh", (second, labels))) == 0
    assert train.repeated() == 0
    assert train.shared(DataMark("copy", (first * (1 + 2e-7), labels))) == 3000


def test_repeats_with_noise_do_not_hide_that_they_are_training_rows() -> None:
    x, y = drawn(4)
    noise = 3e-6 * torch.randn(1000, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with pytest.raises(CertificateError, match=r"fresh sample: train .* shares 1000 rows"):
        hold_out((x, y), (x.double().repeat(5, 1) + noise, y.repeat(5)))


def test_neighbours_on_a_line_are_no_copies() -> None:
    """A chance of meeting that came from 1000 rows was too low in 7 of 20 draws, and fresh rows were refused."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        train, fresh = (torch.rand(60_000, 1, generator=generator, dtype=torch.float64) for _ in range(2))
        mark = DataMark("train", train)
        assert (mark.shared(DataMark("fresh", fresh)), mark.repeated()) == (0, 0)
        assert mark.shared(DataMark("fresh", torch.cat([fresh, train[:20_000]]))) > 20_000


def test_thousands_of_equal_rows_are_counted_in_a_moment() -> None:
    """The search took 11 s for 60,000 rows of two kinds."""
    rows = torch.zeros(60_000, 10)
    rows[::2, 0] = 1
    begun = time.perf_counter()
    assert DataMark("sample", rows).repeated() == 60_000
    assert time.perf_counter() - begun < 5
