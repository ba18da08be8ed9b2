"""The losses of single rows: the same for a function of torch, its module, and a function of the user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CLASSES = torch.arange(12) % 3
WEIGHTS = torch.tensor([1.0, 9.0, 2.0], dtype=torch.float64)
IGNORED = -100


def problem(loss: Any, target: Tensor = CLASSES, hyper: nn.Module | None = None) -> pt.Problem:
    torch.manual_seed(0)
    outputs = 3 if target.ndim == 1 else 6
    model = nn.Sequential(
        nn.Linear(4, outputs), nn.Unflatten(1, (3, -1)) if target.ndim > 1 else nn.Identity()
    ).double()
    return pt.Problem(model, hyper or pt.WeightDecay(model), train=(X, target), valid=(X, target), loss=loss)


def rows(loss: Any, target: Tensor = CLASSES) -> Tensor:
    one = problem(loss, target)
    return one.row_losses(one.valid)


def test_a_module_of_torch_knows_the_losses_of_rows_as_its_function_does() -> None:
    module = nn.CrossEntropyLoss(weight=WEIGHTS)
    assert torch.equal(
        rows(module), rows(lambda p, t, reduction="mean": F.cross_entropy(p, t, WEIGHTS, reduction=reduction))
    )
    assert module.reduction == "mean"
    assert torch.equal(rows(nn.CrossEntropyLoss()), rows(F.cross_entropy))


def test_a_module_of_torch_weighs_examples() -> None:
    gradients = []
    for loss in (F.cross_entropy, nn.CrossEntropyLoss()):
        one = problem(loss, hyper=pt.ExampleWeights(12).double())
        outer = torch.optim.SGD(one.hyper.parameters(), lr=1.0)
        tuner = pt.Tuner(one, inner=pt.SGD(lr=0.1), inner_steps=2, outer=outer, objective=pt.ValidationRisk())
        tuner.hypergradient()
        gradients.append(torch.cat([p.grad.flatten() for p in one.hyper.parameters() if p.grad is not None]))
    assert torch.equal(*gradients)
    assert bool(gradients[0].abs().sum() > 0)


class OfMeans(nn.CrossEntropyLoss):
    """A module of the user's own, whose `reduction` says nothing."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)


@pytest.mark.parametrize("loss", [OfMeans(), lambda p, t: F.cross_entropy(p, t)], ids=["module", "function"])
def test_losses_of_ones_own_are_called_row_by_row(loss: Any) -> None:
    torch.testing.assert_close(rows(loss), rows(F.cross_entropy))


def test_a_row_without_counted_targets_has_the_loss_0() -> None:
    target = torch.stack([CLASSES, CLASSES], dim=1)
    target[3], target[5, 0] = IGNORED, IGNORED
    found = [
        rows(loss, target) for loss in (F.cross_entropy, nn.CrossEntropyLoss(), lambda p, t: F.cross_entropy(p, t))
    ]
    for losses in found:
        assert losses.isfinite().all()
        assert losses[3] == 0
    assert torch.equal(found[0], found[1])


def test_a_loss_that_is_not_a_number_stays_so() -> None:
    bad = problem(lambda p, t: F.cross_entropy(p, t))
    with torch.no_grad():
        next(bad.model.parameters())[0] = float("nan")
    assert bad.row_losses(bad.valid).isnan().all()
