"""The sample of a search: one data set with folds, or two joined to one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, TensorDataset

import pactune as pt
from pactune.problem.data import as_source
from pactune.search import samples
from pactune.search.samples import first_inputs, one_sample, spread_of

CPU = torch.device("cpu")
X, Y = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def test_labels_are_stratified() -> None:
    sample = one_sample((X, Y), None, 3, None, CPU)
    assert sample.refit
    assert [Y[fold.valid].sum() for fold in sample.folds] == [2, 2, 2]
    assert sorted(torch.cat([fold.valid for fold in sample.folds]).tolist()) == list(range(12))


def test_a_small_validation_sample_has_a_fold_per_row() -> None:
    folds = one_sample((X, Y), (X[:3], Y[:3]), None, None, CPU).folds
    assert sorted(fold.valid.tolist() for fold in folds) == [[12], [13], [14]]


def test_two_datasets_are_joined() -> None:
    sample = one_sample(TensorDataset(X, Y), TensorDataset(X[:6], Y[:6]), None, None, CPU)
    assert isinstance(sample.data, ConcatDataset)
    assert len(sample.data) == 18


@pytest.mark.parametrize(
    ("data", "valid", "error"),
    [
        ((X, Y), TensorDataset(X, Y), "must both hold tensors"),
        ((X, Y), (X[:, :1], Y), "made like `data`"),
        ((X, Y), (X, X, Y), "must both hold tensors"),
        (TensorDataset(X, Y), Endless(), "`valid` is an IterableDataset"),
    ],
    ids=["two kinds", "other width", "more tensors", "no length"],
)
def test_samples_of_two_kinds_are_refused(data: Any, valid: Any, error: str) -> None:
    with pytest.raises(pt.DataError, match=error):
        one_sample(data, valid, None, None, CPU)


def test_groups_belong_to_data() -> None:
    with pytest.raises(pt.SettingError, match="with `valid` leave it out"):
        one_sample((X, Y), (X, Y), None, [0] * 12, CPU)


def test_first_inputs_are_the_inputs_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(data: Any) -> Any:
        return first_inputs(as_source(data, role="data", device=CPU))

    assert torch.equal(found((X, Y)), X)
    assert torch.equal(found(TensorDataset(X, Y)), X)
    assert found((X, X, Y)) is None
    monkeypatch.setattr(samples, "MOST_NUMBERS", 23)
    assert found((X, Y)) is None
    monkeypatch.undo()
    monkeypatch.setattr(samples, "MOST_INPUTS", 1)
    assert found((X, Y)) is None


def test_the_spread_is_that_of_the_inputs_around_their_means() -> None:
    inputs = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 10.0]])  # variances 4 and 0
    assert spread_of(inputs) == pytest.approx(2**0.5)
    assert spread_of(inputs + 100) == pytest.approx(2**0.5)


@pytest.mark.parametrize("inputs", [torch.ones(3, 2).long(), torch.ones(1, 2), torch.eye(3).to_sparse()])
def test_some_inputs_cannot_have_noise(inputs: torch.Tensor) -> None:
    assert spread_of(inputs) == 0


def test_many_numbers_have_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_NOISE", X.numel() - 1)
    assert spread_of(X) == 0
