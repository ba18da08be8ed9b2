"""The runs that `benchmarks/faults.py` kills: each starts or resumes in a folder and returns what it ended with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pactune as pt

Final = dict[str, Any]


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(300, 20), torch.randint(0, 3, (300,))


def final(result: pt.Result) -> Final:
    """Return the rows, and sums of all tensors: equal sums of equal histories are equal tensors."""
    states = [*result.model.state_dict().items(), *result.hyper.state_dict().items()]
    sums = {name: value.double().sum().item() for name, value in states}
    kept = {"status": result.status, "kept_step": result.kept_step, "verdict": result.verdict, "sums": sums}
    return {"rows": list(result.rows), "plain_rows": list(result.plain_rows), "result": kept}


def run_loader(folder: Path, steps: int) -> Final:
    """Mini-batches of a shuffling DataLoader, BatchNorm, dropout, two chains, Adam inside and RMSprop outside."""
    x, y = sample()
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    hyper = pt.WeightDecay(model)
    train = DataLoader(TensorDataset(x[:100], y[:100]), batch_size=30, shuffle=True)
    valid = DataLoader(TensorDataset(x[100:200], y[100:200]), batch_size=50)
    problem = pt.Problem(model, hyper, train=train, valid=valid, loss=nn.functional.cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    tuner = pt.Tuner(
        problem, inner=pt.Adam(lr=1e-2), inner_steps=3, outer=outer, objective=pt.PACBayes(1e-3), chains=2, seed=1
    )
    test = (x[200:], y[200:])
    return final(tuner.fit(steps, test=test, run_dir=folder, resume=True, progress=False, keep="best-objective"))


def run_chains(folder: Path, steps: int) -> Final:
    """Four Langevin chains that start anew in every outer step and are recorded from the eleventh on."""
    x, y = sample()
    model = nn.Linear(20, 3)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(
        model, hyper, train=(x[:100], y[:100]), valid=(x[100:200], y[100:200]), loss=nn.functional.cross_entropy
    )
    tuner = pt.Tuner(
        problem,
        inner=pt.Langevin(lr=0.05, inverse_temperature=1000.0),
        inner_steps=100,
        outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2),
        objective=pt.PACBayes(0.1),
        chains=4,
        restart=True,
    )
    return final(tuner.fit(steps, run_dir=folder, resume=True, progress=False))


def run_grid(folder: Path, steps: int) -> Final:
    """Three runs as one, recorded from the eleventh outer step on, with large inner steps that amplify rounding."""
    x, y = sample()

    def build(lr: float) -> pt.Tuner:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))
        hyper = pt.WeightDecay(model)
        train, valid = (x[:100], y[:100]), (x[100:200], y[100:200])
        problem = pt.Problem(model, hyper, train=train, valid=valid, loss=nn.functional.cross_entropy)
        outer = torch.optim.SGD(hyper.parameters(), lr=lr)  # runs of a grid share all settings of the inner dynamics
        return pt.Tuner(problem, inner=pt.SGD(lr=1.0), inner_steps=100, outer=outer, objective=pt.PACBayes(0.1), seed=0)

    cells = {"lr": [0.0, 1e-4, 3e-4]}
    found = pt.fit_grid(build, cells, outer_steps=steps, run_dir=folder, resume=True, progress=False)
    parts = [final(result) for result in found.results]
    return {
        "rows": [row for part in parts for row in part["rows"]],
        "plain_rows": [row for part in parts for row in part["plain_rows"]],
        "result": [part["result"] for part in parts],
    }


KINDS: dict[str, Callable[[Path, int], Final]] = {"loader": run_loader, "chains": run_chains, "grid": run_grid}
