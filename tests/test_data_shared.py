"""Runs that hold the same data share it in their stack, with the numbers of runs that hold copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.problem.data import as_source
from pactune.problem.data.joined import BatchJoiner, first_of_stack, tensors_of
from pactune.problem.data.source import Batch
from pactune.stacking import shared_data
from tests.conftest import classes, linear

X, Y = classes(30, 1, torch.float64)
VALID = classes(12, 2, torch.float64)
SEEDS = [0, 1, 2]


def history(given: Callable[[int], dict[str, Any]], engine: str = "traced") -> pd.DataFrame:
    def build(seed: int, zeta: float) -> pt.Tuner:
        model = linear(seed, torch.float64)
        hyper = pt.WeightDecay(model, init=0.05)
        problem = pt.Problem(model, hyper, loss=F.cross_entropy, **given(seed))
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        settings = {"inner": pt.SGD(0.1), "inner_steps": 5, "objective": pt.PACBayes(zeta)}
        return pt.Tuner(problem, outer=outer, engine=engine, seed=seed, **settings)

    grid = pt.fit_grid(build, {"seed": SEEDS, "zeta": [0.1]}, outer_steps=2)
    return grid.history.drop(columns="seconds")


WAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "one tensor": lambda _: {"train": (X, Y), "valid": VALID},
    "views": lambda _: {"train": (X[:20], Y[:20]), "valid": VALID},
    "equal copies": lambda _: {"train": (X.clone(), Y.clone()), "valid": VALID},
    "labels of their own": lambda seed: {"train": (X, (Y + seed) % 3), "valid": VALID},
    "folds": lambda _: {"data": (X, Y), "folds": 3},
    "mini-batches": lambda _: {"train": (X, Y), "valid": VALID, "batch_size": 10},
    "mini-batches of folds": lambda _: {"data": (X, Y), "folds": 3, "batch_size": 10},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("large", [0, 2**28], ids=["by data", "all together"])
def test_shared_data_give_the_numbers_of_single_runs(way: str, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacked products round otherwise than single ones, by far less than 1e-9 in float64."""
    monkeypatch.setattr(shared_data, "LARGE_COPY", large)
    pd.testing.assert_frame_equal(history(WAYS[way]), history(WAYS[way], "eager"), rtol=1e-9, atol=1e-12)


def batch(x: Tensor, y: Tensor) -> Batch:
    return Batch({"x": x, "y": y}, len(x), torch.arange(len(x)))


def test_a_stack_copies_only_the_tensors_that_differ() -> None:
    batches = [batch(X[:20], (Y[:20] + shift) % 3) for shift in SEEDS]
    joined = BatchJoiner(compare=True)(batches)
    assert joined.stacked
    assert joined.data["x"].data_ptr() == X.data_ptr()  # a view of the same memory is shared
    assert joined.data["y"].shape == (3, 20)
    assert joined.shared == {0, 2}
    first = first_of_stack(joined)
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(first), tensors_of(batches[0]), strict=True))


def test_a_batch_that_all_runs_share_is_not_stacked() -> None:
    batches = [batch(X.clone(), Y.clone()) for _ in SEEDS]
    assert BatchJoiner(compare=True)(batches) is batches[0]
    assert BatchJoiner()(batches).stacked


def test_values_that_were_changed_in_between_are_not_shared() -> None:
    x = X.clone()
    source = as_source((x, Y), role="train", device=X.device)
    rows = torch.arange(0, 30, 2)
    before = source.subset(rows).first().data[0]
    x.add_(1)
    assert torch.equal(source.subset(rows).first().data[0], before + 1)


def test_equal_folds_of_one_tensor_are_taken_once() -> None:
    rows = torch.arange(0, 30, 2)
    sources = [as_source((X, Y), role="train", device=X.device).subset(rows) for _ in range(2)]
    one, two = (source.first().data for source in sources)
    assert one[0] is two[0]
    named = as_source({"x": X, "y": Y}, role="train", device=X.device).subset(rows).first().data
    assert torch.equal(named["x"], one[0])  # another structure has its own


def test_mappings_with_other_keys_are_not_joined() -> None:
    with pytest.raises(pt.DataError, match="made alike"):
        BatchJoiner()([Batch({"x": X}, 30), Batch({"z": X + 1}, 30)])
