"""Data on a GPU: batches are copied ahead, and every structure is captured with the numbers of tuples."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import pactune as pt
from pactune.problem.data.prefetch import on_device
from tests.conftest import classes, linear

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda", 0)
X, Y = classes(24, 1)


def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
    return F.cross_entropy(model(x), y)


def history(engine: str, **data: Any) -> pd.DataFrame:
    model = linear().to(DEVICE)
    hyper = pt.WeightDecay(model, init=0.05)
    problem = pt.Problem(model, hyper, train_loss=loss, valid_loss=loss, **data)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    settings = {"inner": pt.SGD(0.1), "inner_steps": 9, "objective": pt.PACBayes(0.05)}
    made = pt.Tuner(problem, outer=outer, engine=engine, **settings)
    return made.fit(3, progress=False).history.drop(columns="seconds")


def test_batches_are_copied_ahead_in_order() -> None:
    batches = [{"x": torch.full((1000, 100), float(i)).pin_memory(), "y": [torch.tensor([i])]} for i in range(20)]
    for i, found in enumerate(on_device(batches, DEVICE)):
        assert found["x"].device == DEVICE
        assert float((found["x"] @ torch.ones(100, 1, device=DEVICE)).mean()) == pytest.approx(100 * i)
        assert int(found["y"][0]) == i
        found["x"].add_(1)  # memory that is given back at once must not be overwritten by the next copy


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True], ids=["standard sampler", "own sampler"])
def test_pinned_batches_of_workers_give_the_numbers_of_tensors(workers: int, own: bool) -> None:
    order = {"sampler": list(range(24))} if own else {}
    loader = DataLoader(TensorDataset(X, Y), 8, num_workers=workers, pin_memory=True, **order)  # type: ignore[arg-type]
    plain = DataLoader(TensorDataset(X, Y), 8)
    valid = (X.to(DEVICE), Y.to(DEVICE))
    found, wanted = (history("eager", train=one, valid=valid) for one in (loader, plain))
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("engine", ["captured", "eager"])
def test_dicts_are_captured(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pactune")
    x, y = X.to(DEVICE), Y.to(DEVICE)
    found = history(engine, data={"x": x, "y": y}, folds=3)
    assert "one by one" not in caplog.text
    wanted = history(engine, data=(x, y), folds=3)
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-4, atol=1e-6)
