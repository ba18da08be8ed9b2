"""Which states are kept, and how a step is differentiated, changes nothing in the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.dynamics import Dynamics
from pactune.errors import SettingError

pytestmark = pytest.mark.slow

T = 11
DYNAMICS: dict[str, Dynamics] = {
    "sgd": pt.SGD(0.1),
    "momentum": pt.SGD(0.1, momentum=0.8),
    "nesterov": pt.SGD(0.1, momentum=0.8, nesterov=True),
    "decoupled momentum": pt.SGD(0.1, momentum=0.8, decoupled=True),
    "adam": pt.Adam(0.02),
    "adam coupled": pt.Adam(0.02, decoupled=False),
    "langevin": pt.Langevin(0.1, inverse_temperature=50.0),
}


class Both(nn.Module):
    """A decay and a hyperparameter of the training loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.decay = pt.WeightDecay(model, init=0.05)
        self.smooth = nn.Parameter(torch.tensor(0.2, dtype=torch.float64))


def smooth_loss(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    scores = model(batch[0])
    return F.cross_entropy(scores, batch[1]) + hyper.smooth**2 * scores.square().mean()


def valid_loss(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def gradient(risk: Any, inner: Any = None, *, path: Any = None, inside: bool = False) -> Tensor:
    """Return the λ-gradient of the second round, flat, of a model with buffers, dropout and mini-batches."""
    torch.manual_seed(2)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)]
    model = nn.Sequential(*layers).double()
    hyper = Both(model) if inside else pt.WeightDecay(model, init=0.05)
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.arange(40) % 3
    x[:, 3] = 0  # a weight without gradient: Adam's second average stays at 0
    losses: Any = {"train_loss": smooth_loss, "valid_loss": valid_loss} if inside else {"loss": F.cross_entropy}
    problem = pt.Problem(model, hyper, train=(x[:24], y[:24]), valid=(x[24:], y[24:]), batch_size=8, **losses)
    tuner = pt.Tuner(
        problem,
        inner=inner or pt.Adam(0.02),
        inner_steps=T,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.PACBayes(0.5) if path is not None else pt.ValidationRisk(),
        hypergradient=risk,
        path_hypergradient=path,
    )
    tuner.hypergradient()
    tuner.hypergradient()
    found = torch.cat([p.grad.reshape(-1) for p in hyper.parameters() if p.grad is not None])
    assert float(found.norm()) > 1e-6
    return found


@pytest.mark.parametrize("inside", [False, True], ids=["penalty", "loss"])
@pytest.mark.parametrize("inner", DYNAMICS.values(), ids=DYNAMICS)
def test_segments_change_no_bit(inner: Dynamics, inside: bool) -> None:
    kept = gradient(pt.Windowed(T, segment=1), inner, inside=inside)
    for segment in (3, T, 2 * T, *(() if inner.same_in_graph else (None,))):
        assert torch.equal(gradient(pt.Windowed(T, segment=segment), inner, inside=inside), kept), segment
        assert torch.equal(gradient(pt.Truncated(T, segment=segment), inner, inside=inside), kept), segment


@pytest.mark.parametrize("inside", [False, True], ids=["penalty", "loss"])
@pytest.mark.parametrize("inner", [one for one in DYNAMICS.values() if one.same_in_graph], ids=str)
def test_one_graph_of_all_steps_changes_nothing_but_rounding(inner: Dynamics, inside: bool) -> None:
    for k in (1, 5, T):
        kept = gradient(pt.Truncated(k, segment=1), inner, inside=inside)
        torch.testing.assert_close(gradient(pt.Truncated(k), inner, inside=inside), kept, rtol=1e-10, atol=1e-13)
    for w in (4, T):
        kept = gradient(pt.Windowed(w, segment=1), inner, inside=inside)
        torch.testing.assert_close(gradient(pt.Windowed(w), inner, inside=inside), kept, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_segments_change_no_bit_of_a_truncation(k: int) -> None:
    kept = gradient(pt.Truncated(k, segment=1))
    for segment in (None, 3, k, T):
        assert torch.equal(gradient(pt.Truncated(k, segment=segment)), kept), segment
    assert not torch.allclose(kept, gradient(pt.Truncated(k + 1)), rtol=1e-6)


@pytest.mark.parametrize("w", [2, 4, 5])
@pytest.mark.parametrize("risk_only", [True, False])
def test_segments_change_no_bit_of_a_window(w: int, risk_only: bool) -> None:
    def of(segment: int | None) -> Tensor:
        windowed = pt.Windowed(w, segment=segment)
        return gradient(windowed, path=None if risk_only else windowed)

    for segment in (None, 3, w):
        assert torch.equal(of(segment), of(1)), segment


@pytest.mark.parametrize("inner", DYNAMICS.values(), ids=DYNAMICS)
def test_closed_adjoint_is_that_of_autograd(inner: Dynamics, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = gradient(pt.Windowed(T), inner)
    monkeypatch.setattr(pt.Problem, "has_closed_steps", False)
    assert torch.allclose(gradient(pt.Windowed(T), inner), closed, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("segment", [0, -1, 1.5, True])
@pytest.mark.parametrize("estimator", [pt.Truncated, pt.Windowed])
def test_segment_must_be_a_positive_number(estimator: Any, segment: Any) -> None:
    with pytest.raises(SettingError, match="`segment` must be"):
        estimator(3, segment=segment)
