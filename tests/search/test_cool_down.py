"""Large models on a CUDA device train for a fixed time, in whose second half the learning rate falls to 0."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.dynamics import SGD
from pactune.search import tune as front_door
from pactune.search.decays import ROUNDS
from pactune.search.many import OUTER_STEPS
from pactune.search.training import CoolDown, InnerLoop

STEPS = 4


def test_a_loop_that_does_not_cool_stays_as_it_is() -> None:
    loop = InnerLoop(SGD(0.1), 5, 0)
    assert loop.over(7) is loop


def test_a_loop_cools_down_by_the_end_of_its_rounds_and_again_over_others() -> None:
    loop = InnerLoop(SGD(0.1, momentum=0.9), 5, 0, cools=True).over(8)
    assert loop.inner == SGD(CoolDown(0.1, 40), momentum=0.9)
    assert loop._replace(steps=10).over(6).inner == SGD(CoolDown(0.1, 60), momentum=0.9)
    rates = [loop.inner.learning_rate(step) for step in range(41)]
    assert rates[:21] == [0.1] * 21
    assert all(later < sooner for sooner, later in itertools.pairwise(rates[20:]))
    assert rates[40] == 0


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(40, generator=generator) > 0).long()


def tune(**settings: object) -> pt.Result:
    torch.manual_seed(0)
    data = {"loss": cross_entropy, "inner_steps": STEPS, "progress": False}
    return pt.tune(nn.Linear(6, 2), rows(), **{**data, **settings})  # type: ignore[arg-type]


@pytest.fixture
def long_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "trains_long", lambda problem: True)


def by_hand(rate: float, decay: float, steps: int) -> torch.Tensor:
    """Return the weights after SGD with momentum, a decoupled decay and the falling rate."""
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(6, 2), rows()
    schedule, params = CoolDown(rate, ROUNDS * STEPS), list(model.parameters())
    speed = [torch.zeros_like(p) for p in params]
    for step in range(steps):
        gradient = torch.autograd.grad(cross_entropy(model(x), y), params)
        with torch.no_grad():
            for p, v, g in zip(params, speed, gradient, strict=True):
                p -= schedule(step) * v.mul_(0.9).add_(g)
                p *= 1 - schedule(step) * decay
    return params[0].detach()


@pytest.mark.usefixtures("long_training")
def test_the_kept_model_is_the_one_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    original = front_door.compare
    monkeypatch.setattr(front_door, "compare", lambda *a: original(*a)._replace(kept=front_door.ONE_DECAY))
    result = tune()
    kept = next(row for row in result.comparison if row["model"] == front_door.ONE_DECAY)
    assert all(row["steps"] <= ROUNDS * STEPS for row in result.comparison if row["decay"] is not None)
    wanted = by_hand(float(result.settings["learning_rate"]), kept["decay"], kept["steps"])
    torch.testing.assert_close(result.model.weight, wanted, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]


@pytest.mark.usefixtures("long_training")
def test_the_tuned_run_cools_down_over_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[InnerLoop] = []
    original = front_door.tune_while_held_out
    monkeypatch.setattr(front_door, "tune_while_held_out", lambda *a: met.append(a[5]) or original(*a))
    tune()
    (loop,) = met
    assert loop.steps == -(-ROUNDS * STEPS // OUTER_STEPS)
    assert loop.inner.lr == CoolDown(loop.inner.learning_rate(0), loop.steps * OUTER_STEPS)


@pytest.mark.usefixtures("long_training")
def test_a_resumed_run_reads_its_search_and_ends_at_the_same_model(tmp_path: Path) -> None:
    first = tune(run_dir=tmp_path / "run")
    again = tune(run_dir=tmp_path / "run", resume=True)
    assert again.verdict == first.verdict
    torch.testing.assert_close(again.model.weight, first.model.weight, rtol=0, atol=0)  # type: ignore[union-attr]


@pytest.mark.usefixtures("long_training")
def test_dynamics_of_the_user_keep_their_own_rate() -> None:
    result = tune(inner=pt.SGD(0.05, momentum=0.9, decoupled=True))
    assert "CoolDown" not in str(result.settings["inner"])
    assert "CoolDown" in str(tune().settings["inner"])
