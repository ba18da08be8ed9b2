"""Data that are sparse, endless or broken: they are taken, or refused with an error that names the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, IterableDataset

import pactune as pt
from tests.mistakes import X, Y, fit, problem, tuner


def test_sparse_rows_are_taken_in_batches(tmp_path: Path) -> None:
    def last(train: Tensor) -> float:
        torch.manual_seed(0)
        return float(
            fit(given=problem(train=(train, Y), batch_size=3), run_dir=tmp_path / str(train.layout)).rows[-1]["risk"]
        )

    dense = X * (X > 0)
    assert last(dense.to_sparse()) == pytest.approx(last(dense), rel=1e-6)


def test_infinite_loaders_need_not_end_before_the_first_step() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from zip(X, Y, strict=True)

    assert problem(train=DataLoader(Endless(), batch_size=4)).train.first().rows == 4


class Broken(Dataset[Any]):
    """A data set whose last row cannot be read; with `ragged` its rows differ in length."""

    def __init__(self, *, ragged: bool = False, length: int = 8) -> None:
        self.ragged, self.length = ragged, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == 7:
            raise OSError("disk")
        return X[row][: row + 1 if self.ragged else 4], Y[row]


class BrokenStream(IterableDataset[Any]):
    """A stream that breaks off."""

    def __iter__(self) -> Iterator[Any]:
        yield from [(X[0], Y[0]), (X[1], Y[1])]
        raise OSError("disk")


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (Broken(), "Broken, read at rows .* fails with OSError: disk"),
        (Broken(ragged=True), "fails with RuntimeError: stack expects"),
        (Broken(length=-1), "the length of a Broken fails with ValueError"),
        (DataLoader(Broken(), 4), "fails with OSError: disk"),
        (DataLoader(BrokenStream(), 2), "the DataLoader of `train` fails with OSError: disk"),
    ],
)
def test_an_error_in_the_data_names_the_data(train: Any, words: str) -> None:
    size = None if isinstance(train, DataLoader) else 3
    with pytest.raises(pt.DataError, match=words):
        tuner(problem(train=train, batch_size=size)).fit(3)


def test_a_single_row_that_is_left_over_for_batchnorm() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))
    hyper = pt.WeightDecay(model)
    given = pt.Problem(model, hyper, train=(x, y), valid=(x, y), loss=F.cross_entropy, batch_size=11)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    made = pt.Tuner(given, inner=pt.SGD(0.1), inner_steps=4, outer=outer, objective=pt.PACBayes(0.1))
    with pytest.raises(pt.DataError, match="leaves no single row over"):
        made.fit(1, progress=False)
