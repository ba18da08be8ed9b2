"""Laws of the monitor that hold for every input, searched by hypothesis."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

few = settings(max_examples=40, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)


def batch(seed: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, n, generator=generator, dtype=torch.float64) for n in (3, 2))  # type: ignore[return-value]


def model_of(seed: int) -> nn.Module:
    model = nn.Linear(3, 2, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


@few
@given(SEEDS, SEEDS, SEEDS)
def test_coherence_is_a_distance(model_seed: int, a: int, b: int) -> None:
    monitor = pt.CoherenceMonitor(model_of(model_seed), F.mse_loss)
    there, back = monitor.step(batch(a), batch(b)), monitor.step(batch(b), batch(a))
    torch.testing.assert_close(there, back, rtol=1e-12, atol=0)
    assert float(monitor.step(batch(a), batch(a))) == 0.0  # type: ignore[arg-type]


@few
@given(SEEDS, st.floats(0.01, 100), st.floats(0, 10), st.floats(-5, 5))
def test_objective_is_linear_in_zeta_and_risk(seed: int, scale: float, zeta: float, risk: float) -> None:
    model = model_of(seed)
    plain = pt.CoherenceMonitor(model, F.mse_loss)
    scaled = pt.CoherenceMonitor(model, lambda p, y: scale * F.mse_loss(p, y))
    for monitor in (plain, scaled):
        monitor.step(batch(seed + 1), batch(seed + 2))
    assert scaled.regularizer == pytest.approx(scale * plain.regularizer, rel=1e-9)
    assert plain.objective(risk, zeta) == pytest.approx(risk + zeta * plain.regularizer, rel=1e-12, abs=1e-12)
    assert plain.objective(risk, "theory", lr=4 * scale**2) == pytest.approx(risk + scale * plain.regularizer)


@few
@given(SEEDS, st.integers(1, 9), st.integers(0, 40))
def test_every_block_is_measured_once(seed: int, every: int, steps: int) -> None:
    monitor = pt.CoherenceMonitor(model_of(0), F.mse_loss, every=every, seed=seed)
    due = []
    for _ in range(steps):
        due.append(monitor.due)
        monitor.step(*((batch(1), batch(2)) if monitor.due else ()))
    blocks = [due[i : i + every] for i in range(0, steps, every)]
    assert all(sum(block) == 1 for block in blocks if len(block) == every)
    assert all(sum(block) <= 1 for block in blocks)
    assert (monitor.steps, monitor.measured) == (steps, sum(due))


@few
@given(SEEDS, st.integers(1, 5), st.integers(0, 12), st.integers(0, 12))
def test_a_resumed_sum_is_the_sum(seed: int, every: int, first: int, second: int) -> None:
    through, before, after = (pt.CoherenceMonitor(model_of(seed), F.mse_loss, every=every, seed=seed) for _ in range(3))
    for t in range(first):
        before.step(batch(t), batch(t + 100))
    after.load_state_dict(before.state_dict())
    for t in range(first, first + second):
        after.step(batch(t), batch(t + 100))
    for t in range(first + second):
        through.step(batch(t), batch(t + 100))
    assert after.state_dict() == through.state_dict()
    assert math.isfinite(through.total)
