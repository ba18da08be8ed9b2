"""The monitor measures what the tuner measures, and what its formula says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.rounds.plan import RoundRequest
from pactune.rounds.round import run_round
from pactune.trees import clone

Data = tuple[Tensor, Tensor]


def data(rows: int, seed: int, dtype: torch.dtype = torch.float64) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator, dtype=dtype)
    return x, torch.randint(0, 3, (rows,), generator=generator)


def network(*, noisy: bool, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # A bias before BatchNorm has gradient 0, of which Adam would make steps out of rounding errors: there is none.
        middle = [nn.BatchNorm1d(8), nn.Dropout(0.5)] if noisy else [nn.Tanh()]
        return nn.Sequential(nn.Linear(4, 8, bias=not noisy), *middle, nn.Linear(8, 3)).to(dtype)


def gradient(model: nn.Module, batch: Data) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), list(model.parameters())))


def squared(terms: list[Tensor]) -> float:
    return float(sum((term**2).sum() for term in terms))


# The tuner's number


def tuner_of(model: nn.Module, inner: pt.SGD | pt.Adam) -> pt.Tuner:
    hyper = pt.WeightDecay(model, init=0.3)
    problem = pt.Problem(
        model, hyper, train=data(24, 1), valid=data(12, 2), loss=F.cross_entropy, batch_size=6, valid_batch_size=4
    )
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=inner, inner_steps=7, outer=outer, objective=pt.PACBayes(0.1), seed=3)


@pytest.mark.parametrize("noisy", [False, True], ids=["plain", "BatchNorm and dropout"])
@pytest.mark.parametrize("stored", [False, True], ids=["train batch", "grad"])
@pytest.mark.parametrize("way", ["SGD", "Adam"])
def test_equals_the_tuner_on_the_same_trajectory(noisy: bool, stored: bool, way: str) -> None:
    model = network(noisy=noisy)
    tuner = tuner_of(model, pt.SGD(lr=0.05) if way == "SGD" else pt.Adam(lr=0.02))
    problem, inputs = tuner.problem, tuner.outer_run.inputs
    start = inputs.begin(clone(problem.parameters()), problem.buffers())
    theirs = run_round(
        RoundRequest(
            tuner.outer_run.plan(0.1),
            [start],
            problem.hyperparameters(),
            lambda t: inputs.step_data(t, 1),
            inputs.risk_batches(problem.valid, 0),
        )
    )

    # A loop that somebody else owns, with an optimizer of torch, meets the same batches and the same dropout.
    optimizer: torch.optim.Optimizer
    if way == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.3)
        monitor = pt.CoherenceMonitor(model, F.cross_entropy, seed=3, weight_decay=optimizer)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        monitor = pt.CoherenceMonitor(model, F.cross_entropy, seed=3, penalty=problem.hyper)
    with torch.random.fork_rng():
        for t in range(7):
            train, valid, _, keys, _ = inputs.step_data(t, 1)[0]
            torch.manual_seed(keys[0] if keys else 0)
            optimizer.zero_grad()
            F.cross_entropy(model(train.data[0]), train.data[1]).backward()
            monitor.step(None if stored else train.data, valid.data)
            optimizer.step()
            if way == "Adam":  # our Adam decays after its step, torch's AdamW before it
                with torch.no_grad():
                    for p in model.parameters():
                        p.mul_(1 - 0.02 * 0.3)
    assert monitor.regularizer == pytest.approx(float(theirs.regularizer), rel=1e-12)


# The formula


@pytest.mark.parametrize("way", ["number", "dict", "optimizer", "groups", "module", "function"])
def test_decay_enters_as_lambda_theta(way: str) -> None:
    model, train, valid = network(noisy=False), data(6, 1), data(5, 2)
    weights = [name for name, _ in model.named_parameters() if name.endswith("weight")]
    decays = {
        name: 0.1 if way not in ("dict", "groups") or name in weights else 0.0
        for name in dict(model.named_parameters())
    }
    groups = [
        {"params": [p for name, p in model.named_parameters() if name in weights], "weight_decay": 0.1},
        {"params": [p for name, p in model.named_parameters() if name not in weights], "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {
        "number": {"weight_decay": 0.1},
        "dict": {"weight_decay": dict.fromkeys(weights, 0.1)},
        "optimizer": {"weight_decay": torch.optim.AdamW(model.parameters(), weight_decay=0.1)},
        "groups": {"weight_decay": torch.optim.AdamW(groups)},
        "module": {"penalty": pt.WeightDecay(model, per="tensor", init=0.1)},
        "function": {"penalty": lambda params: 0.05 * sum((p**2).sum() for p in params.values())},
    }[way]
    found = pt.CoherenceMonitor(model, F.cross_entropy, **settings).step(train, valid)
    penalty = [decays[name] * p.detach() for name, p in model.named_parameters()]
    delta = [a + b - c for a, b, c in zip(gradient(model, train), penalty, gradient(model, valid), strict=True)]
    assert found is not None
    assert float(found) == pytest.approx(squared(delta), rel=1e-12)


def test_a_schedule_of_the_decay_is_followed() -> None:
    model = network(noisy=False)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=optimizer)
    batch = data(6, 1)
    assert float(monitor.step(batch, batch)) == 0.0  # type: ignore[arg-type]
    optimizer.param_groups[0]["weight_decay"] = 0.5
    second = monitor.step(batch, batch)
    assert float(second) == pytest.approx(squared([0.5 * p.detach() for p in model.parameters()]), rel=1e-12)  # type: ignore[arg-type]


def test_both_clips_at_one_give_the_cosine() -> None:
    model, train, valid = network(noisy=False), data(6, 1), data(5, 2)
    steep = lambda prediction, target: 100 * F.cross_entropy(prediction, target)  # noqa: E731
    found = pt.CoherenceMonitor(model, steep, clip_train=1.0, clip_valid=1.0).step(train, valid)
    a, b = (torch.cat([g.reshape(-1) for g in gradient(model, part)]) for part in (train, valid))
    assert float(found) == pytest.approx(2 - 2 * float(F.cosine_similarity(a, b, dim=0)), rel=1e-12)  # type: ignore[arg-type]


def test_objective_is_equation_5() -> None:
    model = network(noisy=False)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy)
    summands = [float(monitor.step(data(6, t), data(5, 50 + t))) for t in range(4)]  # type: ignore[arg-type]
    assert monitor.total == pytest.approx(sum(summands), rel=1e-15)
    assert monitor.regularizer == math.sqrt(monitor.total)
    assert monitor.objective(0.7, 0.1) == 0.7 + 0.1 * monitor.regularizer
    assert monitor.objective(torch.tensor(0.5), "theory", lr=0.04) == pytest.approx(0.5 + 0.1 * monitor.regularizer)
    assert monitor.objective(0.5, "theory", lr=0.04, beta=0.25) == pytest.approx(0.5 + 0.05 * monitor.regularizer)
    assert monitor.objective(0.7, 0) == 0.7


def test_general_losses_and_scaled_gradients() -> None:
    model, train, valid = network(noisy=False), data(6, 1), data(5, 2)
    general = pt.CoherenceMonitor(model, batch_loss=lambda m, b: F.cross_entropy(m(b["x"]), b["y"]))
    short = pt.CoherenceMonitor(model, F.cross_entropy)
    pairs = [dict(zip("xy", part, strict=True)) for part in (train, valid)]
    assert torch.equal(general.step(*pairs), short.step(train, valid))  # type: ignore[arg-type]
    (1024 * F.cross_entropy(model(train[0]), train[1])).backward()
    scaled = short.step(None, valid, grad_scale=1024.0)
    assert float(scaled) == pytest.approx(short.total / 2, rel=1e-12)  # type: ignore[arg-type]


def test_sparse_gradients_and_unused_parameters() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(5, 3, sparse=True), "unused": nn.Linear(2, 2)}).double()
    loss = lambda m, rows: m["table"](rows).square().sum()  # noqa: E731
    train, valid = torch.tensor([0, 1, 1]), torch.tensor([4])
    monitor = pt.CoherenceMonitor(model, batch_loss=loss)
    loss(model, train).backward()
    stored, computed = monitor.step(None, valid), monitor.step(train, valid)
    table = model["table"].weight.detach()
    expected = (2 * table[0]).square().sum() + (4 * table[1]).square().sum() + (2 * table[4]).square().sum()
    torch.testing.assert_close(stored, expected)
    torch.testing.assert_close(computed, expected)


# Stride


def test_stride_is_unbiased() -> None:
    """Each block of s steps counts one of them s times; over seeds the mean is the full sum."""
    model = network(noisy=False)
    full = pt.CoherenceMonitor(model, F.cross_entropy)
    batches = [(data(6, t), data(5, 50 + t)) for t in range(10)]  # the last block of four is cut off
    summands = [float(full.step(*pair)) for pair in batches]  # type: ignore[arg-type]
    seeds, totals = 2000, []
    for seed in range(seeds):
        monitor = pt.CoherenceMonitor(model, F.cross_entropy, every=4, seed=seed)
        totals.append(0.0)
        for q in summands:
            totals[-1] += 4 * q if monitor.due else 0.0
            monitor.steps += 1  # the pick depends on the seed and the step alone
    values = torch.tensor(totals, dtype=torch.float64)
    error = float(values.std()) / math.sqrt(seeds)
    assert abs(float(values.mean()) - full.total) < 4 * error  # four standard errors: 1 in 16,000 by chance
    assert error < 0.02 * full.total


def test_stride_counts_what_is_due() -> None:
    model = network(noisy=False)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy, every=3, seed=1)
    found, expected = [], 0.0
    for t in range(9):
        pair = (data(6, t), data(5, 50 + t)) if monitor.due else (None, None)
        found.append(monitor.step(*pair))
        expected += 3 * float(found[-1]) if found[-1] is not None else 0.0
    assert [sum(q is not None for q in found[i : i + 3]) for i in (0, 3, 6)] == [1, 1, 1]
    assert (monitor.steps, monitor.measured) == (9, 3)
    assert monitor.total == pytest.approx(expected, rel=1e-15)


# State


def test_state_goes_through_json_and_on() -> None:
    model = network(noisy=True)
    batches = [(data(6, t), data(5, 50 + t)) for t in range(8)]
    through = pt.CoherenceMonitor(model, F.cross_entropy, every=2, seed=5)
    for pair in batches:
        through.step(*pair)
    first = pt.CoherenceMonitor(model, F.cross_entropy, every=2, seed=5)
    for pair in batches[:3]:
        first.step(*pair)
    second = pt.CoherenceMonitor(model, F.cross_entropy, every=2, seed=5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for pair in batches[3:]:
        second.step(*pair)
    assert second.state_dict() == through.state_dict()
    second.reset()
    assert (second.total, second.steps, second.measured) == (0.0, 0, 0)


def test_what_is_not_finite_raises_or_is_left_out() -> None:
    model, train, valid = network(noisy=False), data(6, 1), data(5, 2)
    strict = pt.CoherenceMonitor(model, F.cross_entropy)
    lenient = pt.CoherenceMonitor(model, F.cross_entropy, on_nonfinite="skip")
    broken = (train[0] * float("inf"), train[1])
    for monitor in (strict, lenient):
        monitor.step(train, valid)
        monitor.step(broken, valid)
    with pytest.raises(pt.DivergenceError, match="after 2 steps"):
        strict.regularizer  # noqa: B018
    with pytest.raises(pt.DivergenceError, match="`valid_risk` is nan"):
        lenient.objective(float("nan"), 0.1)
    once = pt.CoherenceMonitor(model, F.cross_entropy)
    once.step(train, valid)
    assert lenient.total == once.total
