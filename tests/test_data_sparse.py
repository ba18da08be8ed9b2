"""Sparse inputs give the numbers of dense ones: rows, mini-batches, folds, hypergradients."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.problem.data.take_rows import first_rows, take_rows

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


def dense_rows(seed: int, rows: int = 12) -> tuple[Tensor, Tensor]:
    """Return inputs of which two thirds are zero, one row all zero, and labels of three classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    x = x * (torch.rand(rows, 5, generator=generator) < 1 / 3)
    x[3] = 0
    return x, torch.arange(rows) % 3


def uncoalesced(x: Tensor) -> Tensor:
    """Return a COO tensor in which every entry is there twice, with half its value."""
    whole = x.to_sparse_coo()
    indices = torch.cat([whole.indices(), whole.indices()], 1)
    return torch.sparse_coo_tensor(
        indices, torch.cat([whole.values(), whole.values()]) / 2, x.shape, check_invariants=False
    )


LAYOUTS: dict[str, Any] = {
    "coo": lambda x: x.to_sparse_coo(),
    "uncoalesced": uncoalesced,
    "csr": lambda x: x.to_sparse_csr(),
}
EACH = pytest.mark.parametrize("layout", LAYOUTS)


class Linear(nn.Module):
    """A linear layer by `torch.sparse.mm`, which also takes a dense matrix."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.weight = nn.Parameter(torch.randn(5, 3, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if x.layout == torch.strided else torch.sparse.mm(x, self.weight)


def tuner(given: dict[str, Any], engine: str = "eager", **settings: Any) -> pt.Tuner:
    model = Linear()
    hyper = pt.WeightDecay(model, init=0.05)
    problem = pt.Problem(model, hyper, loss=F.cross_entropy, **given)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    defaults = {"inner": pt.SGD(0.2), "inner_steps": 5, "objective": pt.PACBayes(0.1)}
    return pt.Tuner(problem, outer=outer, engine=engine, **(defaults | settings))


WAYS: dict[str, Any] = {
    "full batches": lambda form: {"train": _pair(form, 1), "valid": _pair(form, 2)},
    "mini-batches": lambda form: {"train": _pair(form, 1), "valid": _pair(form, 2), "batch_size": 5},
    "folds": lambda form: {"data": _pair(form, 1), "folds": 3},
    "a dict": lambda form: {
        "data": {"x": _pair(form, 1)[0], "labels": _pair(form, 1)[1]}, "folds": 3, "batch_size": 4
    },
}  # fmt: skip


def _pair(form: Any, seed: int) -> tuple[Tensor, Tensor]:
    x, y = dense_rows(seed)
    return form(x), y


@EACH
@pytest.mark.parametrize("index", [[0], [3], [7, 3, 7, 0], list(range(11, -1, -1))], ids=str)
def test_rows_are_those_of_the_dense_tensor(layout: str, index: list[int]) -> None:
    x = dense_rows(1)[0]
    given = LAYOUTS[layout](x)
    found = take_rows(given, torch.tensor(index))
    assert found.layout == given.layout
    assert torch.equal(found.to_dense(), x[index])
    assert torch.equal(first_rows(given, 4).to_dense(), x[:4])


@EACH
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_runs_on_sparse_rows_are_those_on_dense_rows(layout: str, way: str, engine: str) -> None:
    found, wanted = (
        tuner(WAYS[way](form), engine).fit(2, progress=False).history.drop(columns="seconds")
        for form in (LAYOUTS[layout], lambda x: x)
    )
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-9)


@EACH
@pytest.mark.filterwarnings("ignore:the linear solve of Implicit leaves")
@pytest.mark.parametrize("estimator", [pt.Truncated(5), pt.Implicit(pt.Neumann(5))], ids=["unrolled", "implicit"])
def test_hypergradients_are_those_of_dense_rows(layout: str, estimator: Any) -> None:
    def gradient(form: Any) -> Tensor:
        made = tuner(WAYS["full batches"](form), hypergradient=estimator)
        made.hypergradient()
        found = next(iter(made.problem.hyper.parameters())).grad
        assert found is not None
        return found

    assert torch.allclose(gradient(LAYOUTS[layout]), gradient(lambda x: x), rtol=1e-9, atol=1e-14)


@EACH
def test_the_hypergradient_agrees_with_finite_differences(layout: str) -> None:
    assert pt.check_hypergradient(tuner(WAYS["mini-batches"](LAYOUTS[layout]), hypergradient=pt.Truncated(5))).passed


@EACH
def test_a_loss_that_is_a_sum_is_noticed_on_sparse_rows(layout: str) -> None:
    model = Linear()
    given = WAYS["full batches"](LAYOUTS[layout])
    loss = lambda outputs, target: F.cross_entropy(outputs, target) * len(target)  # noqa: E731
    problem = pt.Problem(model, pt.WeightDecay(model), loss=loss, **given)
    with pytest.raises(pt.SettingError, match="must be the mean over the rows"):
        problem.try_losses()


def test_a_layout_without_rows_is_refused() -> None:
    x, y = dense_rows(1)
    with pytest.raises(pt.DataError, match=r"layout torch\.sparse_csc, whose rows cannot be taken by number"):
        tuner({"train": (x.to_sparse_csc(), y), "valid": (x, y)})
