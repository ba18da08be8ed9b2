"""Calls of `pt.tune` on tiny data, which tests share."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

tuning = importlib.import_module("pactune.search.tune")  # the package has a function of this name

ROWS = 30
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
CLASSES = (X[:, 0] + X[:, 1] > 0).long() + (X[:, 2] > 0.7).long()
HITS = (X[:, :1] + NOISE[:, None] > 0).float()
NUMBERS = X[:, :1] + 0.3 * NOISE[:, None]
NAMES = ["plain training", "one decay", "the tuned model"]


def network(*layers: nn.Module, outputs: int = 3) -> nn.Module:
    """Return a linear classifier, or the layers, with parameters that depend on nothing else."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(*layers) if layers else nn.Linear(4, outputs)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        return model


def tune(model: nn.Module | None = None, data: Any = None, **changes: Any) -> pt.Result:
    settings: dict[str, Any] = {"loss": F.cross_entropy, "folds": 3, "inner": pt.SGD(0.3, momentum=0.5)}
    settings |= {"inner_steps": 2, "engine": "eager", "progress": False} | changes
    given = {name: value for name, value in settings.items() if value is not ...}
    return pt.tune(network() if model is None else model, (X, CLASSES) if data is None else data, **given)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def keeping(name: str) -> Any:
    """Return a comparison that keeps a given procedure, whatever the numbers say."""

    def compare(*arguments: Any) -> Any:
        found = original(*arguments)
        rows = [{**row, "kept": row["model"] == name} for row in found.rows]
        return found._replace(kept=name, rows=rows, verdict=found.verdict._replace(verdict=f"{name} is kept"))

    original = tuning.compare
    return compare
