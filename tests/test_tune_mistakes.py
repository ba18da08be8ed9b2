"""Mistakes in a call of `pt.tune`, and their errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import IterableDataset

import pactune as pt
from tests.mistakes import Case, check_refused
from tests.search.calls import (
    CLASSES,
    NUMBERS,
    ROWS,
    X,
    network,
    tune,
    tuning,
)

pytestmark = pytest.mark.usefixtures("short_search")


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(itertools.cycle(X), itertools.cycle(CLASSES), strict=False)


def nan_in(values: Tensor) -> Tensor:
    changed = values.clone()
    changed[3] = float("nan")
    return changed


def frozen() -> nn.Module:
    return network().requires_grad_(False)


S, D = pt.SettingError, pt.DataError
MISTAKES = {
    "model is a function": Case(lambda: tune(lambda x: x), S, "`model` must be"),
    "model without parameters": Case(lambda: tune(nn.Identity()), S, "parameter"),
    "frozen model": Case(lambda: tune(frozen()), S, "trainable parameter"),
    "no data": Case(lambda: pt.tune(network(), None, loss=F.cross_entropy), D, "`data` must be"),
    "empty data": Case(lambda: tune(data=(X[:0], CLASSES[:0])), D, "`data`"),
    "inputs without targets": Case(lambda: tune(data=X), pt.PactuneError, "loss"),
    "rows that do not match": Case(lambda: tune(data=(X, CLASSES[:7])), D, "rows"),
    "NaN in the inputs": Case(lambda: tune(data=(nan_in(X), CLASSES)), pt.PactuneError, "(?i)nan|finite"),
    "NaN in the targets": Case(
        lambda: tune(network(outputs=1), (X, nan_in(NUMBERS)), loss=F.mse_loss), pt.PactuneError, "(?i)nan|finite"
    ),
    "two rows": Case(lambda: tune(data=(X[:2], CLASSES[:2])), D, "2 rows"),
    "no folds": Case(lambda: tune(folds=0), S, "`folds` must be a number ≥ 3"),
    "two folds": Case(lambda: tune(folds=2), S, "`folds` must be a number ≥ 3"),
    "one fold of valid": Case(lambda: tune(valid=(X, CLASSES), folds=1), S, "`folds` must be a number ≥ 2"),
    "two pairs of rows": Case(lambda: tune(folds=[([0, 1], [2, 3]), ([2, 3], [0, 1])]), S, "three folds"),
    "folds as text": Case(lambda: tune(folds="five"), S, "folds"),
    "groups without a splitter": Case(lambda: tune(groups=[0] * ROWS), S, "`groups` needs"),
    "hyper is a number": Case(lambda: tune(hyper=3), S, "`hyper`"),
    "weights of other rows": Case(lambda: tune(hyper=pt.ExampleWeights(7)), S, "7 example weights"),
    "unknown scorer": Case(lambda: tune(metric="best"), S, "scikit-learn scorer"),
    "metric is a number": Case(lambda: tune(metric=1), S, "`metric` must be"),
    "metric fails": Case(lambda: tune(metric=lambda p, t: p / "a"), S, "`metric` fails"),
    "loss is a sum": Case(
        lambda: tune(loss=lambda p, t: F.cross_entropy(p, t, reduction="sum")), pt.PactuneError, "sum"
    ),
    "loss is no function": Case(lambda: tune(loss=3), S, "`loss`"),
    "loss fails": Case(lambda: tune(network(outputs=1)), pt.PactuneError, "loss"),
    "unknown engine": Case(lambda: tune(engine="warp"), S, "engine"),
    "no inner steps": Case(lambda: tune(inner_steps=0), S, "`inner_steps`"),
    "inner is text": Case(lambda: tune(inner="adam"), S, "`inner`"),
    "batch size": Case(lambda: tune(batch_size=0), pt.PactuneError, "`batch_size`"),
    "seed": Case(lambda: tune(seed="a"), S, "`seed`"),
    "resume without a folder": Case(lambda: tune(resume=True), pt.PactuneError, "run_dir"),
    "progress": Case(lambda: tune(progress="loud"), S, "`progress`"),
    "data without numbers": Case(lambda: tune(data=Endless()), D, "`data` is an IterableDataset"),
    "valid without numbers": Case(lambda: tune(valid=Endless()), D, "`valid` is an IterableDataset"),
    "test of another width": Case(lambda: tune(test=(X[:, :2], CLASSES)), pt.PactuneError, "test"),
    "valid of another width": Case(lambda: tune(valid=(X[:, :2], CLASSES)), D, "made like"),
}


class Nowhere(nn.Module):
    """A hyperparameter that enters nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize("hyper", [Nowhere(), pt.Initialization(network())], ids=["nowhere", "start"])
def test_hyperparameters_without_a_gradient_are_refused_before_the_search(
    hyper: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "find_learning_rate", lambda *_: pytest.fail("the search has begun"))
    message = r"`pt\.tune` cannot tune this `hyper`; use `pt\.Tuner`"
    check_refused(Case(lambda: tune(hyper=hyper, inner=None), S, message))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_clear_error(name: str) -> None:
    check_refused(MISTAKES[name])


def test_two_folds_are_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "find_learning_rate", lambda *_: pytest.fail("the search has begun"))
    check_refused(Case(lambda: tune(folds=2, inner=None), S, "≥ 3"))


def test_a_run_folder_that_is_a_file_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(tuning, "search_scalars", lambda *_: pytest.fail("the search has begun"))
    check_refused(Case(lambda: tune(run_dir=tmp_path / "file"), pt.RunFolderError, "file"))


def test_a_run_folder_that_cannot_be_made_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")  # as in /proc, where root seems to have permission

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(tuning, "search_scalars", lambda *_: pytest.fail("the search has begun"))
    check_refused(Case(lambda: tune(run_dir=tmp_path / "run"), pt.RunFolderError, "cannot be made"))
