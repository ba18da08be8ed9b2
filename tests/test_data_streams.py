"""Streams: data without a length train a model, are never read to their end, and say what they cannot do."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import pactune as pt
from pactune.problem.data import as_source
from tests.conftest import classes, linear

X, Y = classes(12, 1)
VALID = classes(10, 2)
MOST = 4000  # rows after which a stream fails: nothing here needs as many


class Endless(IterableDataset[Any]):
    """The rows of (X, Y) again and again. It counts them, and fails when somebody reads to the end."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift, self.read = shift, 0

    def __iter__(self) -> Iterator[Any]:
        for row in itertools.count():
            self.read += 1
            assert row < MOST, "somebody reads the stream to its end"
            yield X[row % 12] + self.shift, Y[row % 12]


class Measured(Endless):
    """The same twelve rows with a known length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))

    def __len__(self) -> int:
        return 12


class Forever(Sampler[int]):
    """A sampler that draws without end."""

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(12))


def loader(stream: Dataset[Any] | None = None, size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(Endless() if stream is None else stream, batch_size=size, **options)


def tuner(train: Any = None, valid: Any = None, objective: Any = None, **sizes: Any) -> pt.Tuner:
    model = linear()
    hyper = pt.WeightDecay(model, init=0.05)
    given = {"train": loader() if train is None else train, "valid": VALID if valid is None else valid}
    problem = pt.Problem(model, hyper, loss=F.cross_entropy, **given, **sizes)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=6, outer=outer, objective=objective or pt.PACBayes(0.05))


def numbers(given: pt.Tuner, steps: int = 3, **options: Any) -> pd.DataFrame:
    return given.fit(steps, progress=False, **options).history.drop(columns="seconds")


KINDS: dict[str, Any] = {
    "loader": lambda: pt.Stream(loader(), 3),
    "without a statement": lambda: loader(),
    "data set": lambda: Endless(),
    "endless sampler": lambda: pt.Stream(loader(TensorDataset(X, Y), sampler=Forever()), 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:`train` is a DataLoader without a length")
def test_training_on_a_stream_is_training_on_its_batches(kind: str) -> None:
    """Twelve rows in batches of four, in order: the stream's steps are those of the same rows as a data set."""
    sizes = {"batch_size": 4} if kind == "data set" else {}
    found = numbers(tuner(KINDS[kind](), **sizes))
    wanted = numbers(tuner(loader(TensorDataset(X, Y))))
    stated = kind in ("loader", "endless sampler")  # otherwise 100 batches are evaluated, which are not whole epochs
    columns = [name for name in wanted if stated or not name.startswith("train_")]
    pd.testing.assert_frame_equal(found[columns], wanted[columns], rtol=1e-6)


def test_a_problem_reads_nothing_and_describes_a_stream() -> None:
    stream = Endless()
    problem = tuner(loader(stream)).problem
    assert "train=a stream of rows" in repr(problem)
    assert stream.read == 0


def test_a_stated_number_of_batches_is_evaluated_and_no_row_more() -> None:
    stream = Endless()
    source = as_source(pt.Stream(loader(stream), 5), role="valid", device=torch.device("cpu"))
    assert sum(batch.rows for batch in source.evaluation()) == 20
    assert stream.read == 20
    with pytest.raises(pt.DataError, match="goes on after 5 batches, so the number of its rows is unknown"):
        source.rows  # noqa: B018


def test_a_stream_validates_by_its_stated_batches() -> None:
    found = numbers(tuner((X, Y), pt.Stream(loader(), 3)))
    wanted = numbers(tuner((X, Y), loader(TensorDataset(X, Y))))
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-6)


def test_without_a_statement_a_warning_names_the_number() -> None:
    with pytest.warns(
        UserWarning, match=r"its first 100 batches stand for all rows .* state their number with pt.Stream"
    ):
        numbers(tuner(), 1)


def test_a_stream_that_ends_or_knows_its_length_is_read_as_a_whole() -> None:
    class Short(Endless):
        def __iter__(self) -> Iterator[Any]:
            return iter(zip(X, Y, strict=True))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stream in (Short(), Measured()):
            source = as_source(loader(stream), role="train", device=torch.device("cpu"))
            assert sum(batch.rows for batch in source.evaluation()) == 12
            assert source.size == source.rows == 12


REFUSED: dict[str, Any] = {
    "folds": (
        lambda: pt.Problem(m := linear(), pt.WeightDecay(m), data=loader(), loss=F.cross_entropy),
        "rows cannot be",
    ),
    "no batch size": (lambda: tuner(Endless()), "`batch_size` must say how many"),
    "no valid batch size": (lambda: tuner((X, Y), Endless()), "`valid_batch_size` must say how many"),
    "two sizes": (lambda: tuner(pt.Stream(loader(), 2), batch_size=4), "is a Stream and brings its own"),
    "no loader": (lambda: pt.Stream(Endless(), 2), "`loader` must be a DataLoader, got Endless"),  # type: ignore[arg-type]
    "no batches": (lambda: pt.Stream(loader(), 0), "`batches` must be at least 1"),
    "theory's n": (
        lambda: tuner(pt.Stream(loader(), 2), objective=pt.UnequalSteps(valid_lr=0.1, zeta=0.1)).fit(1, progress=False),
        "the number of its rows is unknown",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_stream_cannot_do_is_refused_in_one_sentence(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(pt.PactuneError, match=words):
        call()


def test_an_interrupted_run_reads_on_where_it_stopped(tmp_path: Path) -> None:
    def make() -> pt.Tuner:
        return tuner(pt.Stream(loader(), 3))

    numbers(make(), 2, run_dir=tmp_path / "run")
    resumed = numbers(make(), 4, run_dir=tmp_path / "run", resume=True)
    pd.testing.assert_frame_equal(resumed, numbers(make(), 4), check_exact=True)


def test_a_stream_that_starts_otherwise_is_not_resumed(tmp_path: Path) -> None:
    numbers(tuner(pt.Stream(loader(), 3)), 1, run_dir=tmp_path / "run")
    other = tuner(pt.Stream(loader(Endless(shift=1.0)), 3))
    with pytest.raises(pt.PactuneError, match="first batch"):
        other.fit(2, progress=False, run_dir=tmp_path / "run", resume=True)
