"""Our dynamics give the numbers of torch.optim, and Langevin's noise has the variance of the theory."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.dynamics import Dynamics, StepInputs
from pactune.rounds.round import run_round
from pactune.trees import Params, clone

STEPS = 50
DECAY = 0.3
Factory = Callable[[Any], torch.optim.Optimizer]


def problem(batch_size: int | None = None, decay: float = DECAY) -> pt.Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (12,), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    hyper = pt.WeightDecay(model, per="global", init=decay)
    return pt.Problem(model, hyper, train=(x, y), valid=(x, y), loss=F.cross_entropy, batch_size=batch_size)


def run_ours(given: pt.Problem, inner: Any, steps: int = STEPS) -> Params:
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    settings = {"hypergradient": pt.Truncated(1), "objective": pt.ValidationRisk()}
    pt.Tuner(given, inner=inner, inner_steps=steps, outer=outer, **settings).hypergradient()
    return clone(given.parameters())


def run_torch(given: pt.Problem, factory: Factory, *, coupled: float = 0.0, decoupled: float = 0.0) -> Params:
    """Train with an optimizer of torch, the penalty in the loss or as a decay after the step."""
    model = given.model
    optimizer = factory(model.parameters())
    batch = next(given.train.epoch()).data
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss = loss + 0.5 * coupled * sum((p**2).sum() for p in model.parameters())
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 - optimizer.param_groups[0]["lr"] * decoupled)
    return clone(given.parameters())


def assert_same(ours: Params, theirs: Params, tolerance: float = 1e-12) -> None:
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=tolerance, atol=tolerance)


COUPLED: dict[str, tuple[Dynamics, Factory]] = {
    "sgd": (pt.SGD(0.2), functools.partial(torch.optim.SGD, lr=0.2)),
    "momentum": (pt.SGD(0.2, momentum=0.9), functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9)),
    "nesterov": (
        pt.SGD(0.2, momentum=0.9, nesterov=True),
        functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9, nesterov=True),
    ),
    "adam": (
        pt.Adam(0.02, betas=(0.8, 0.95), eps=1e-6, decoupled=False),
        functools.partial(torch.optim.Adam, lr=0.02, betas=(0.8, 0.95), eps=1e-6),
    ),
    "cold langevin": (pt.Langevin(0.2, inverse_temperature=math.inf), functools.partial(torch.optim.SGD, lr=0.2)),
}


@pytest.mark.parametrize("name", COUPLED)
def test_same_numbers_as_torch(name: str) -> None:
    inner, factory = COUPLED[name]
    assert_same(run_ours(problem(), inner), run_torch(problem(), factory, coupled=DECAY))


@pytest.mark.parametrize("inner", [pt.Adam(0.02), pt.SGD(0.2, momentum=0.9, decoupled=True)], ids=["adam", "sgd"])
def test_decoupled_decay_follows_the_step(inner: Any) -> None:
    """θ ← θ' − ηλθ' with θ' after the step; torch's AdamW decays before it, which differs in second order."""
    factories: dict[type, Factory] = {
        pt.Adam: functools.partial(torch.optim.Adam, lr=0.02),
        pt.SGD: functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9),
    }
    assert_same(run_ours(problem(), inner), run_torch(problem(), factories[type(inner)], decoupled=DECAY))


TORCH: dict[str, Factory] = {
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.02, momentum=0.5, centered=True),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.1),
    "nadam": functools.partial(torch.optim.NAdam, lr=0.02),
    "momentum": functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("name", TORCH)
def test_optimizer_of_torch_as_inner_dynamics(name: str) -> None:
    assert_same(run_ours(problem(), TORCH[name]), run_torch(problem(), TORCH[name], coupled=DECAY))


def test_optimizer_of_torch_with_decoupled_penalty() -> None:
    ours = run_ours(problem(), pt.TorchOptim(TORCH["rmsprop"], decoupled=True))
    assert_same(ours, run_torch(problem(), TORCH["rmsprop"], decoupled=DECAY))


def test_t1_t2_of_an_optimizer_of_torch_is_that_of_the_gradient_step() -> None:
    given = problem()
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(given, inner=TORCH["rmsprop"], inner_steps=1, outer=outer, objective=pt.ValidationRisk())
    start = clone(given.parameters())
    tuner.hypergradient()
    with torch.enable_grad():
        batch = next(given.valid.epoch()).data
        risk = F.cross_entropy(given.model(batch[0]), batch[1])
        slopes = torch.autograd.grad(risk, list(given.model.parameters()))
    by_hand = -0.02 * sum((g * p).sum() for g, p in zip(slopes, start.values(), strict=True))
    gradient = given.hyper.values["all"].grad
    torch.testing.assert_close(gradient, by_hand, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"hypergradient": pt.Truncated(2)},
        {"hypergradient": pt.Windowed(2)},
        {"path_hypergradient": pt.Truncated(3)},
        {"hypergradient": pt.ForwardMode()},
    ],
    ids=str,
)
def test_optimizer_of_torch_refuses_more_than_one_step(settings: dict[str, Any]) -> None:
    given = problem()
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    with pytest.raises(pt.SettingError, match=r"differentiates through \d+ steps.*use SGD, Adam or Langevin"):
        pt.Tuner(given, inner=TORCH["adamw"], inner_steps=5, outer=outer, objective=pt.PACBayes(zeta=0.1), **settings)


def test_langevin_noise_has_variance_two_eta_over_tau() -> None:
    """Without a gradient a step is noise alone: the sample variance of N draws has standard error √(2/N)·σ²."""
    eta, tau, count = 0.3, 20.0, 100_000
    zeros = {"w": torch.zeros(count, dtype=torch.float64)}
    noise = {"w": torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    dynamics = pt.Langevin(eta, tau)
    moved, _ = dynamics.step(zeros, {}, StepInputs(zeros, None, {}, noise, dynamics.numbers(0)))
    expected = 2 * eta / tau
    error = expected * math.sqrt(2 / count)  # 0.0045 of the variance; a lost factor 2 is 200 of them
    assert abs(float(moved["w"].var()) - expected) < 4 * error
    assert abs(float(moved["w"].mean())) < 4 * math.sqrt(expected / count)


def test_langevin_noise_of_steps_and_chains_is_independent() -> None:
    given = problem()
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(
        given, inner=pt.Langevin(0.1, 10.0), inner_steps=5, outer=outer, objective=pt.PACBayes("theory"), chains=2
    )
    step_data = tuner.outer_run.inputs.step_data
    draws = [torch.cat([n.reshape(-1) for n in data.noise.values()]) for s in range(20) for data in step_data(s, 2)]
    gram = torch.corrcoef(torch.stack(draws))
    size = len(draws[0])  # 43 numbers each: a correlation has standard error 1/√43 = 0.15
    off = gram[~torch.eye(len(draws), dtype=torch.bool)]
    assert float(off.abs().max()) < 5 / math.sqrt(size)
    assert torch.equal(step_data(3, 2)[1].noise["0.bias"], step_data(3, 2)[1].noise["0.bias"])


@pytest.mark.slow
def test_adam_with_inputs_that_are_always_zero_has_no_nan() -> None:
    """A weight behind a dead input has v = 0, where the derivative of √v is infinite."""
    given = problem()
    x, y = next(given.train.epoch()).data
    dead = torch.cat([torch.zeros(12, 1, dtype=torch.float64), x[:, 1:]], dim=1)
    hyper = pt.WeightDecay(given.model, per="element")
    again = pt.Problem(given.model, hyper, train=(dead, y), valid=(dead, y), loss=F.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    for estimator in (pt.Truncated(3), pt.Windowed(5), pt.ForwardMode()):
        settings = {"hypergradient": estimator, "path_hypergradient": estimator, "objective": pt.PACBayes(0.1)}
        value = pt.Tuner(again, inner=pt.Adam(0.01), inner_steps=5, outer=outer, **settings).hypergradient()
        assert math.isfinite(value.total)
        assert all(bool(p.grad.isfinite().all()) for p in hyper.parameters())


def test_schedule_counts_steps_since_the_start() -> None:
    seen: list[int] = []

    def schedule(step: int) -> float:
        seen.append(step)
        return 0.1 / (1 + step)

    given = problem()
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(
        given,
        inner=pt.SGD(schedule),
        inner_steps=3,
        outer=outer,
        objective=pt.PACBayes("theory"),
        hypergradient=pt.Truncated(1),
    )
    for _ in range(2):
        tuner.hypergradient()
    assert set(seen) == set(range(6))


def test_schedule_starts_anew_with_restart() -> None:
    seen: list[int] = []
    given = problem()
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    inner = pt.SGD(lambda step: seen.append(step) or 0.1)
    tuner = pt.Tuner(
        given,
        inner=inner,
        inner_steps=3,
        outer=outer,
        objective=pt.PACBayes("theory"),
        hypergradient=pt.Truncated(1),
        restart=True,
    )
    for _ in range(2):
        tuner.hypergradient()
    assert set(seen) == {0, 1, 2}


def test_schedule_that_leaves_the_positive_numbers_is_refused() -> None:
    given = problem()
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(
        given, inner=pt.Langevin(lambda t: 0.1 - t, 10.0), inner_steps=3, outer=outer, objective=pt.PACBayes("theory")
    )
    with pytest.raises(pt.SettingError, match=r"schedule gave -0\.9 at 1"):
        tuner.hypergradient()


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_donated_step_is_the_same_step_in_the_same_memory(decoupled: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = {"large": (200, 100), "small": (7,), "smaller": ()}  # large ones go one by one, small ones together

    def tree() -> Params:
        return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}

    adam, params, decay = pt.Adam(1e-2, decoupled=decoupled), tree(), tree()
    slots = adam.slots(params)
    for step in range(3):
        inputs = StepInputs(tree(), lambda at: {n: decay[n] * at[n] for n in at}, {}, None, adam.numbers(step))
        with torch.no_grad():
            wanted, wanted_slots = adam.step(params, slots, inputs)
            places = {name: value.data_ptr() for name, value in params.items()}
            params, slots = adam.step(params, slots, inputs._replace(donated=True))
        assert {name: value.data_ptr() for name, value in params.items()} == places
        for name in shapes:
            assert torch.equal(params[name], wanted[name])
            assert all(torch.equal(slots[slot][name], wanted_slots[slot][name]) for slot in slots)


def test_a_round_leaves_where_it_started_alone() -> None:
    given = problem()
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(given, inner=pt.Adam(1e-2), inner_steps=6, outer=outer, objective=pt.PACBayes(0.1))
    plan, lane = tuner.outer_run.plan(0.1), tuner.outer_run.chains.parts[0]
    for _ in range(2):
        request = lane.request(plan, given.hyperparameters())
        (state,) = request.states
        before = [value.clone() for part in (state.params, *state.slots.values()) for value in part.values()]
        outcome = run_round(request)
        after = [value for part in (state.params, *state.slots.values()) for value in part.values()]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        lane.follow(lane.after(outcome))


CLIP = 0.15  # below the gradient of every one of the first steps
CLIPPED = {
    "sgd": (pt.SGD(0.1, clip=CLIP), functools.partial(torch.optim.SGD, lr=0.1), {"coupled": DECAY}),
    "langevin": (
        pt.Langevin(0.1, inverse_temperature=math.inf, clip=CLIP),
        functools.partial(torch.optim.SGD, lr=0.1),
        {"coupled": DECAY},
    ),
    "adam": (pt.Adam(0.01, clip=CLIP), functools.partial(torch.optim.Adam, lr=0.01), {"decoupled": DECAY}),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_a_clip_is_that_of_torch_before_the_step(name: str) -> None:
    """torch.nn.utils.clip_grad_norm_ divides by the norm + 1e-6, hence the tolerance."""
    inner, factory, decay = CLIPPED[name]

    def clipped(parameters: Any) -> torch.optim.Optimizer:
        optimizer = factory(parameters)
        params = optimizer.param_groups[0]["params"]
        optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(params, CLIP) and None)
        return optimizer

    ours = run_ours(problem(), inner)
    assert_same(ours, run_torch(problem(), clipped, **decay), tolerance=1e-4)
    free = run_ours(problem(), dataclasses.replace(inner, clip=None))
    assert max(float((ours[n] - free[n]).abs().max()) for n in free) > 1e-2, "a clip that never acts proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
def test_chains_clip_each_by_its_own_norm(chains: int) -> None:
    """Chains that are run as one would share a norm; the default engine must not do that."""

    def rows(engine: str) -> Any:
        given = problem()
        outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
        inner = pt.Langevin(0.1, inverse_temperature=100.0, clip=CLIP)
        objective = pt.PACBayes(0.1, clip_train=CLIP)
        tuner = pt.Tuner(
            given, inner=inner, inner_steps=5, outer=outer, objective=objective, chains=chains, engine=engine
        )
        return tuner.fit(2, progress=False).history.drop(columns="seconds")

    torch.testing.assert_close(
        torch.tensor(rows("traced").values), torch.tensor(rows("eager").values), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("make", [pt.SGD, pt.Adam, functools.partial(pt.Langevin, inverse_temperature=9.0)])
@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, "1"])
def test_a_clip_is_a_positive_norm(make: Any, clip: Any) -> None:
    with pytest.raises(pt.SettingError, match="`clip` must be a positive finite norm or None"):
        make(0.1, clip=clip)
