"""`Averaged`: the iterates of the inner dynamics, the average that users see, and its statistics of BatchNorm."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.search import tune as front_door
from pactune.search.decays import Scalars

BETA, RATE, MOMENTUM = 0.8, 0.3, 0.9


def rows(count: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] > 0).long()


def network(*, norm: bool = True) -> nn.Module:
    torch.manual_seed(1)
    parts = [nn.Linear(5, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.ReLU(), nn.Linear(6, 2)]
    return nn.Sequential(*parts).double()


def tuner(inner: Any, model: nn.Module, **settings: Any) -> pt.Tuner:
    x, y = rows()
    hyper = pt.WeightDecay(model, per="tensor", init=0.1)
    problem = pt.Problem(model, hyper, train=(x[:14], y[:14]), valid=(x[14:], y[14:]), loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    given = {"inner_steps": 6, "objective": pt.PACBayes(0.1), **settings}
    return pt.Tuner(problem, inner=inner, outer=outer, **given)


def by_hand(steps: int, decay: float) -> tuple[nn.Module, list[Tensor]]:
    """Return the model at the last iterate, and the average of the iterates."""
    model, (x, y) = network(), rows()
    params = list(model.parameters())
    speed, average = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    for step in range(steps):
        gradient = torch.autograd.grad(cross_entropy(model(x[:14]), y[:14]), params)
        weight = max(1 - BETA, 1 / (step + 1))
        with torch.no_grad():
            for p, v, a, g in zip(params, speed, average, gradient, strict=True):
                p -= RATE * v.mul_(MOMENTUM).add_(g + decay * p)
                a += weight * (p - a)
    return model, average


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_users_see_the_average_with_statistics_of_its_own(engine: str) -> None:
    model = network()
    run = tuner(pt.Averaged(pt.SGD(RATE, MOMENTUM), BETA), model, engine=engine)
    run.fit(1, plain_steps=0, progress=False)
    last, average = by_hand(6, 0.1)
    for found, wanted, raw in zip(model.parameters(), average, last.parameters(), strict=True):
        torch.testing.assert_close(found.detach(), wanted, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(found, raw)
    first = model[0](rows()[0][:14])  # type: ignore[index]
    torch.testing.assert_close(model[1].running_mean, first.mean(0).detach())  # type: ignore[index]
    torch.testing.assert_close(model[1].running_var, first.var(0).detach())  # type: ignore[index]
    assert int(model[1].num_batches_tracked) == 6  # type: ignore[index]
    assert model[1].momentum == 0.1  # type: ignore[index]


def test_training_and_the_gradient_are_those_of_the_iterates() -> None:
    found = []
    for inner in (pt.SGD(RATE, MOMENTUM), pt.Averaged(pt.SGD(RATE, MOMENTUM), BETA)):
        model = network()
        run = tuner(inner, model)
        values = [run.hypergradient() for _ in range(3)]
        gradient = [p.grad for p in run.problem.hyper.parameters()]
        found.append((values, gradient))
    (plain, by_plain), (averaged, by_averaged) = found
    torch.testing.assert_close(torch.tensor(averaged), torch.tensor(plain), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(by_averaged, by_plain, rtol=1e-12, atol=1e-15)


def test_the_rows_of_the_history_are_about_the_model_that_is_returned() -> None:
    x, y = rows()
    model = network()
    result = tuner(pt.Averaged(pt.Adam(0.05), BETA), model).fit(3, test=(x, y), plain_steps=0, progress=False)
    with torch.no_grad():
        accuracy = float((result.model(x).argmax(1) == y).double().mean())
    assert result.history["test_accuracy"].iloc[-1] == pytest.approx(accuracy, abs=1e-12)


def test_mini_batches_average_their_statistics() -> None:
    from pactune.problem.statistics import fresh_statistics

    model, (x, y) = network(), rows()
    problem = pt.Problem(
        model, pt.WeightDecay(model), train=(x, y), valid=(x, y), loss=cross_entropy, batch_size=6, valid_batch_size=6
    )
    before = copy.deepcopy(model.state_dict())
    found = fresh_statistics(problem, problem.parameters(), problem.buffers())
    parts = [model[0](batch.data[0]) for batch in problem.train.evaluation()]  # type: ignore[index]
    torch.testing.assert_close(found["1.running_mean"], torch.stack([part.mean(0) for part in parts]).mean(0).detach())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_without_batchnorm_keeps_its_buffers() -> None:
    from pactune.problem.statistics import fresh_statistics

    model, (x, y) = network(norm=False), rows()
    problem = pt.Problem(model, pt.WeightDecay(model), train=(x, y), valid=(x, y), loss=cross_entropy)
    buffers = problem.buffers()
    assert fresh_statistics(problem, problem.parameters(), buffers) is buffers


def test_a_resumed_run_ends_at_the_same_average(tmp_path: Path) -> None:
    ends = []
    for folder, steps in ((None, [4]), (tmp_path / "run", [2, 4])):
        for place, count in enumerate(steps):
            model = network()
            run = tuner(pt.Averaged(pt.SGD(RATE, MOMENTUM), BETA), model)
            run.fit(count, run_dir=folder, resume=place > 0, plain_steps=0, progress=False)
        ends.append(model.state_dict())
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("inner", "beta", "words"),
    [
        (pt.SGD(0.1), 1.0, "`beta` must be a number between 0 and 1"),
        (0.1, 0.9, "`inner` must be SGD, Adam or Langevin"),
        (pt.TorchOptim(torch.optim.SGD), 0.9, "`inner` must be SGD, Adam or Langevin"),
        (pt.Averaged(pt.SGD(0.1)), 0.9, "`inner` must be SGD, Adam or Langevin"),
    ],
)
def test_wrong_settings_are_refused(inner: Any, beta: float, words: str) -> None:
    with pytest.raises(pt.SettingError, match=words):
        pt.Averaged(inner, beta)


@pytest.mark.slow
def test_a_model_that_trains_long_is_an_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "trains_long", lambda problem: True)
    monkeypatch.setattr(front_door, "candidates", lambda *_, **__: [Scalars(0.0), Scalars(0.1)])
    sizes: list[int] = []
    in_batches = pt.Problem.with_mini_batches
    monkeypatch.setattr(pt.Problem, "with_mini_batches", lambda own, size: sizes.append(size) or in_batches(own, size))
    (x, y), settings = rows(60), {"inner_steps": 2, "folds": 3, "engine": "eager", "progress": False}
    pt.tune(network(), (x, y), loss=cross_entropy, batch_size=30, **settings)  # type: ignore[arg-type]
    assert sizes == []
    result = pt.tune(network(), (x, y), loss=cross_entropy, test=(x, y), **settings)  # type: ignore[arg-type]
    assert sizes == [16]
    assert "Averaged" in str(result.settings["inner"])
    last = (result.rows or result.plain_rows)[-1]
    with torch.no_grad():
        accuracy = float((result.model(x).argmax(1) == y).double().mean())
    assert last["test_accuracy"] == pytest.approx(accuracy, abs=1e-12)
