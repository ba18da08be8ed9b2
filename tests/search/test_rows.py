"""Which rows train, choose and judge: no model is asked about rows that trained it or chose it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.model_selection import GroupKFold, KFold, RepeatedKFold, TimeSeriesSplit
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.problem.folds import FoldRows
from pactune.search.rows import counted_rows, hold_out_folds, holding, merged
from pactune.search.samples import one_sample

CPU = torch.device("cpu")
X, Y = torch.arange(48.0).reshape(24, 2), torch.arange(24) % 2


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def folds_of(**changes: Any) -> tuple[FoldRows, ...]:
    settings = {"data": (X, Y), "valid": None, "folds": None, "groups": None, "device": CPU} | changes
    return one_sample(**settings).folds


SPLITS: dict[str, dict[str, Any]] = {
    "five folds": {},
    "three folds": {"folds": 3},
    "splitter": {"folds": KFold(4, shuffle=True, random_state=0)},
    "repeated": {"folds": RepeatedKFold(n_splits=3, n_repeats=2, random_state=0)},
    "groups": {"folds": GroupKFold(4), "groups": [i // 3 for i in range(24)]},
    "time": {"folds": TimeSeriesSplit(4)},
    "validation sample": {"valid": (X[:9] + 100, Y[:9])},
    "pairs": {"folds": [([0, 1, 2, 3], [8, 9]), ([2, 3, 8], [4, 5]), ([9, 2, 3], [6, 7])]},
}


@pytest.mark.parametrize("reach", [1, 2])
@pytest.mark.parametrize("split", SPLITS)
def test_rows_that_train_choose_and_judge_are_never_the_same(split: str, reach: int) -> None:
    folds = folds_of(**SPLITS[split])
    held = hold_out_folds(folds, reach)
    assert len(held) == len(folds)
    for fold, used in zip(folds, held, strict=True):
        assert torch.equal(used.held, fold.valid)
        for part in used.parts:
            train, choose, judge = (set(one.tolist()) for one in (part.train, part.valid, used.held))
            assert min(len(train), len(choose), len(judge)) > 0
            assert len(train | choose | judge) == len(train) + len(choose) + len(judge)
            assert train <= set(fold.train.tolist())


def test_the_neighbours_of_a_fold_choose_one_by_one() -> None:
    folds = folds_of(
        data=(X[:8], torch.arange(8.0)), folds=[(sorted({*range(8)} - {i, i + 1}), [i, i + 1]) for i in (0, 2, 4, 6)]
    )
    parts = hold_out_folds(folds, reach=1)[0].parts
    assert [part.valid.tolist() for part in parts] == [[2, 3], [6, 7]]
    assert [part.train.tolist() for part in parts] == [[4, 5, 6, 7], [2, 3, 4, 5]]
    assert len(hold_out_folds(folds, reach=2)[0].parts) == 3


def test_groups_stay_together() -> None:
    group = torch.arange(24) // 3
    for used in hold_out_folds(folds_of(**SPLITS["groups"]), reach=2):
        for part in used.parts:
            found = [set(group[one].tolist()) for one in (part.train, part.valid, used.held)]
            assert len(set.union(*found)) == sum(map(len, found))


def test_the_training_rows_of_a_series_come_before_the_judging_ones() -> None:
    for used in hold_out_folds(folds_of(**SPLITS["time"]), reach=1):
        assert all(int(part.train.max()) < int(used.held.min()) for part in used.parts)


def test_with_a_validation_sample_one_model_is_chosen_by_the_other_rows() -> None:
    sample = one_sample((X, Y), (X[:9] + 100, Y[:9]), None, None, CPU)
    assert not sample.refit
    assert torch.equal(sample.data[0], torch.cat([X, X[:9] + 100]))
    for used in hold_out_folds(sample.folds, reach=4):
        (part,) = used.parts
        assert part.train.tolist() == list(range(24))
        assert sorted([*part.valid.tolist(), *used.held.tolist()]) == list(range(24, 33))


def test_parts_of_equal_training_rows_are_one() -> None:
    found = merged([FoldRows(rows(0, 1), rows(5, 3)), FoldRows(rows(0, 2), rows(4)), FoldRows(rows(0, 1), rows(3, 4))])
    assert [(part.train.tolist(), part.valid.tolist()) for part in found] == [([0, 1], [3, 4, 5]), ([0, 2], [4])]


@pytest.mark.parametrize("folds", [KFold(2), [([0, 1], [2, 3])]], ids=["two folds", "one pair"])
def test_too_few_folds_are_refused(folds: Any) -> None:
    with pytest.raises(pt.SettingError, match="three folds or more"):
        hold_out_folds(folds_of(folds=folds), reach=2)


IGNORING: dict[str, tuple[Any, int]] = {
    "function": (F.cross_entropy, -100),
    "module": (nn.CrossEntropyLoss(ignore_index=-1), -1),
    "means": (lambda found, wanted: F.cross_entropy(found, wanted, ignore_index=7), 7),
    "mask": (lambda found, wanted: ((found[:, 0] - wanted) ** 2 * (wanted != 9)).mean(), 9),
    "class without a weight": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 0.0])), 2),
}


def labelled_by(targets: torch.Tensor, loss: Any, outputs: int = 3) -> list[int]:
    model = nn.Linear(2, outputs)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return counted_rows(pt.Problem(model, pt.WeightDecay(model), data=(X, targets), folds=3, loss=loss), loss).tolist()


@pytest.mark.parametrize("name", IGNORING)
def test_rows_that_a_loss_ignores_do_not_count(name: str) -> None:
    loss, mark = IGNORING[name]
    assert labelled_by(torch.where(torch.arange(24) % 4 == 1, mark, Y), loss) == [i for i in range(24) if i % 4 != 1]


def test_rows_that_a_model_predicts_correctly_count() -> None:
    zeros = torch.zeros(24, 1)
    squares = lambda found, wanted: ((found - wanted) ** 2).mean()  # noqa: E731
    for loss, targets in ((F.mse_loss, zeros), (squares, zeros.long()), (F.multi_margin_loss, Y)):
        assert labelled_by(targets, loss, outputs=1 if loss is not F.multi_margin_loss else 3) == list(range(24))


def test_a_loss_that_ignores_every_row_is_refused() -> None:
    with pytest.raises(pt.DataError, match="ignores every row"):
        labelled_by(Y, lambda found, wanted: 0 * found.sum(1).mean())


def test_rows_that_do_not_count_neither_choose_nor_judge() -> None:
    folds, counted = folds_of(folds=KFold(4)), torch.arange(3, 24)
    (first, *_), (ignored, *rest) = hold_out_folds(folds, 2, counted), holding(folds, torch.arange(6, 24))
    assert first.held.tolist() == [3, 4, 5]
    assert all(set(part.valid.tolist()) <= {*range(3, 24)} for part in first.parts)
    assert len([ignored, *rest]) == 3
    assert ignored.valid.tolist() == [*range(6, 12)]
