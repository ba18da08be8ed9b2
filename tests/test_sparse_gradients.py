"""An embedding with sparse gradients trains as one with dense gradients, under every dynamics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt

X = torch.randint(0, 7, (20, 4), generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 3


def tuner(*, sparse: bool, **changes: Any) -> pt.Tuner:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        table = nn.Embedding(7, 5, sparse=sparse)
        model = nn.Sequential(table, nn.Flatten(), nn.Linear(20, 3)).double()
    hyper = pt.WeightDecay(model, per="tensor", init=0.1).double()
    problem = pt.Problem(model, hyper, train=(X[:10], Y[:10]), valid=(X[10:], Y[10:]), loss=cross_entropy, batch_size=4)
    settings = {"inner": pt.SGD(0.1), "inner_steps": 4, "objective": pt.PACBayes(0.1), **changes}
    return pt.Tuner(problem, outer=torch.optim.SGD(hyper.parameters(), lr=1.0), **settings)


CASES: dict[str, dict[str, Any]] = {
    "SGD": {},
    "clip": {"inner": pt.SGD(0.1, clip=0.1)},
    "Adam": {"inner": pt.Adam(0.1)},
    "Langevin": {"inner": pt.Langevin(0.1, 1000.0)},
    "torch.optim": {"inner": lambda parameters: torch.optim.SGD(parameters, lr=0.1)},
    "K = 3": {"hypergradient": pt.Truncated(3), "path_hypergradient": pt.Truncated(2)},
    "implicit": {"hypergradient": pt.Implicit(pt.Neumann(3, 0.1))},
    "flatness": {"objective": pt.Flatness(0.1)},
    "online": {"online": True},
    "traced": {"engine": "traced"},
}


@pytest.mark.parametrize("case", CASES)
def test_sparse_gradients_give_the_numbers_of_dense_ones(case: str) -> None:
    sparse, dense = (
        tuner(sparse=sparse, **CASES[case]).fit(2, progress=False).history.drop(columns="seconds")
        for sparse in (True, False)
    )
    torch.testing.assert_close(torch.tensor(sparse.values), torch.tensor(dense.values), rtol=1e-12, atol=1e-14)


def test_the_hypergradient_through_an_embedding_is_exact() -> None:
    checked = tuner(sparse=True, hypergradient=pt.Windowed(4), path_hypergradient=pt.Windowed(4))
    assert pt.check_hypergradient(checked, directions=1).passed
