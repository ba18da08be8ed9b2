"""Dataset distillation: a problem whose training loss needs no rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import pactune as pt
from pactune.errors import DataError

T = 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def valid_rows() -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x @ torch.tensor([[1.0], [-1.0]], dtype=torch.float64)


class Distilled(nn.Module):
    """Inputs that are tuned, with fixed targets: dataset distillation."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64))


def distillation(**settings: Any) -> pt.Tuner:
    model, hyper, valid = network(), Distilled(), valid_rows()
    targets = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    problem = pt.Problem(
        model,
        hyper,
        valid=valid,
        train_loss=lambda model, batch, hyper: mse_loss(model(hyper.x), targets),
        valid_loss=lambda model, batch, hyper: mse_loss(model(batch[0]), batch[1]),
    )
    defaults: dict[str, Any] = {"inner": pt.SGD(lr=0.1), "inner_steps": T, "objective": pt.ValidationRisk()}
    defaults["initial"] = lambda generator: dict(network().named_parameters())
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, outer=outer, hypergradient=pt.Windowed(T), restart=True, **(defaults | settings))


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_distillation_needs_no_training_rows(engine: str, tmp_path: Path) -> None:
    assert pt.check_hypergradient(distillation(), directions=1).passed
    whole = distillation(engine=engine).fit(4, run_dir=tmp_path / "whole")
    assert whole.history["valid_risk"].is_monotonic_decreasing
    assert not [name for name in whole.history if name.startswith("train")]
    distillation(engine=engine).fit(2, run_dir=tmp_path / "parts")
    parts = distillation(engine=engine).fit(4, run_dir=tmp_path / "parts", resume=True)
    assert whole.history.drop(columns="seconds").equals(parts.history.drop(columns="seconds"))


def test_a_loss_of_the_short_form_needs_training_rows() -> None:
    model = network()
    with pytest.raises(DataError, match="`train` must be data"):
        pt.Problem(model, pt.WeightDecay(model), valid=valid_rows(), loss=mse_loss)
