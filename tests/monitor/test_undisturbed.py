"""A run with the monitor is bit for bit the run without it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import pactune as pt

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 4, generator=GENERATOR), torch.arange(40) % 3
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Checkpointed(nn.Module):
    """Its backward runs the forward again, BatchNorm included."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.body, x, use_reentrant=False)
        assert isinstance(hidden, Tensor)
        return self.head(hidden)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Its layers keep references to their parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x[..., None])[0][:, -1])  # type: ignore[no-any-return]


def shared_buffers() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    return nn.Sequential(norm, nn.Linear(4, 4), norm, nn.Linear(4, 3))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


MODELS = {"plain": plain, "checkpointed": Checkpointed, "LSTM": Recurrent, "shared BatchNorm": shared_buffers}


def run(model: nn.Module, device: str, *, watch: bool, place: str, **settings: Any) -> dict[str, Any]:
    """Train a little and return everything that a monitor might disturb."""
    torch.manual_seed(7)
    model = copy.deepcopy(model).to(device)
    x, y = X.to(device), Y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=optimizer, **settings)
    frozen = next(iter(model.parameters()))
    for t in range(6):
        frozen.requires_grad_(t % 2 == 0)
        rows = torch.randperm(20)[:8]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        if watch and place == "between forward and backward":
            monitor.step((x[rows], y[rows]), (x[20:], y[20:]))
        loss.backward()
        if watch and place == "after backward":
            monitor.step(None, (x[20:], y[20:]))
        if watch and place == "in eval mode":
            model.eval()
            monitor.step((x[rows], y[rows]), (x[20:], y[20:]))
            assert not any(module.training for module in model.modules())
            model.train()
        grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    assert not watch or monitor.total > 0
    generators = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if device == "cuda" else [])]
    return {
        "state": dict(model.state_dict()),
        "grad": grads,
        "flags": {name: (p.requires_grad, p.is_leaf) for name, p in model.named_parameters()},
        "mode": [module.training for module in model.modules()],
        "optimizer": optimizer.state_dict(),
        "generators": generators,
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", ["after backward", "between forward and backward", "in eval mode"])
@pytest.mark.parametrize("name", MODELS)
def test_run_is_bit_for_bit_the_same(name: str, place: str, device: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[name]()
        without = run(model, device, watch=False, place=place)
        with_it = run(model, device, watch=True, place=place)
    torch.testing.assert_close(with_it, without, rtol=0, atol=0)


def test_a_failing_loss_leaves_all_as_it_was() -> None:
    model = plain().eval()
    before, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    monitor = pt.CoherenceMonitor(model, F.cross_entropy)
    with pytest.raises(pt.DataError, match="the loss fails on `valid_batch`"):
        monitor.step((X, Y), (X, Y[:3]))
    assert torch.equal(before, torch.get_rng_state())
    assert not any(module.training for module in model.modules())
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)
    assert (monitor.steps, monitor.measured, monitor.total) == (0, 0, 0.0)


def test_recurrent_layers_have_a_gradient() -> None:
    """A swap of parameters would miss the references that an LSTM keeps, and measure zeros in silence."""
    torch.manual_seed(0)
    model = Recurrent()
    F.cross_entropy(model(X[:20]), Y[:20]).backward()
    stored = pt.CoherenceMonitor(model, F.cross_entropy)
    computed = pt.CoherenceMonitor(model, F.cross_entropy)
    stored.step(None, (X[20:], Y[20:]))
    computed.step((X[:20], Y[:20]), (X[20:], Y[20:]))
    assert stored.total == pytest.approx(computed.total, rel=1e-6)
    assert stored.total > 0


def test_mixed_precision_measures_the_loop_s_own_gradient() -> None:
    """In autocast both gradients are those of the loop; with equal batches they differ by nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    monitor = pt.CoherenceMonitor(model, F.cross_entropy)
    for _ in range(3):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(X), Y)
        loss.backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same = monitor.step(None, (X, Y))
        assert same is not None
        assert float(same) == 0.0
    exact = monitor.step((X[:20], Y[:20]), (X[20:], Y[20:]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = monitor.step((X[:20], Y[:20]), (X[20:], Y[20:]))
    # bfloat16 has 8 bits: a relative error of 2⁻⁸ in each gradient, some ten times that in their difference squared
    torch.testing.assert_close(mixed, exact, rtol=0.1, atol=0)


def test_half_precision_parameters_are_summed_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(torch.bfloat16)
    found = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=0.1).step(
        (X[:20].bfloat16(), Y[:20]), (X[20:].bfloat16(), Y[20:])
    )
    assert found is not None
    assert found.dtype == torch.float64
    assert float(found) > 0


def test_lazy_modules_are_measured_once_they_have_shapes() -> None:
    """The monitor may be made before the first batch gives a lazy module its shapes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 3))
    early = pt.CoherenceMonitor(model, F.cross_entropy)
    F.cross_entropy(model(X[:20]), Y[:20]).backward()
    late = pt.CoherenceMonitor(model, F.cross_entropy)
    for monitor in (early, late):
        monitor.step(None, (X[20:], Y[20:]))
    assert early.total == late.total > 0
