"""The tuner: determinism, resuming, own loops, restart, chains, the online algorithm, and the plain run."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.trees import Params, clone

NOISY = pt.Langevin(0.1, inverse_temperature=50.0)


def history(tuner: pt.Tuner, steps: int = 3, **options: Any) -> pd.DataFrame:
    return tuner.fit(steps, progress=False, **options).history.drop(columns="seconds")


def params(tuner: pt.Tuner) -> Params:
    return clone(tuner.problem.parameters())


def hyper(tuner: pt.Tuner) -> Params:
    return clone(tuner.problem.hyperparameters())


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mini-batches": {"batch_size": 5},
    "langevin, chains, restart": {"inner": NOISY, "chains": 3, "restart": True, "batch_size": 5},
    "adam online": {"inner": pt.Adam(0.01), "online": True},
    "long": {"hypergradient": pt.Truncated(4), "path_hypergradient": pt.Windowed(2)},
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.usefixtures("rng_untouched")
def test_same_seed_same_bits(name: str, make: Any) -> None:
    first = history(make(**VARIANTS[name]))
    with torch.random.fork_rng():
        torch.manual_seed(123)
        assert history(make(**VARIANTS[name])).equals(first)


@pytest.mark.parametrize("name", ["mini-batches", "langevin, chains, restart"])
def test_another_seed_differs_where_there_is_chance(name: str, make: Any) -> None:
    assert not history(make(**VARIANTS[name], seed=1)).equals(history(make(**VARIANTS[name])))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("keep", ["last", "best-objective"])
def test_two_fits_equal_one(name: str, keep: str, make: Any) -> None:
    once, twice = make(**VARIANTS[name]), make(**VARIANTS[name])
    whole = history(once, 5)
    parts = pd.concat([history(twice, 3, keep=keep), history(twice, 2)], ignore_index=True)
    assert parts.equals(whole)
    assert equal(params(once), params(twice))
    assert equal(hyper(once), hyper(twice))


@pytest.mark.parametrize("name", [name for name in VARIANTS if "online" not in name])
def test_own_loop_equals_fit(name: str, make: Any) -> None:
    fitted, own = make(**VARIANTS[name]), make(**VARIANTS[name])
    rows = history(fitted, 3)
    for i in range(3):
        value = own.hypergradient()
        assert value.total == rows["objective"][i]
        assert value.total == pytest.approx(value.risk + own.zeta * value.regularizer)
        if i < 2:
            own.outer.step()
    assert equal(params(fitted), params(own))
    assert equal(hyper(fitted), hyper(own))


def test_hypergradient_goes_on_after_fit(make: Any) -> None:
    whole, mixed = make(), make()
    rows = history(whole, 5)
    history(mixed, 3)
    assert mixed.hypergradient().total == rows["objective"][3]
    mixed.outer.step()
    assert mixed.hypergradient().total == rows["objective"][4]


def test_lambda_of_the_result_is_the_one_trained_with(make: Any) -> None:
    tuner = make()
    seen: list[Params] = []

    class Watch(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
            seen.append(hyper(tuner))

    tuner.fit(3, callbacks=[Watch()], progress=False)
    assert equal(seen[-1], hyper(tuner))
    assert not equal(seen[0], seen[-1])


@pytest.mark.parametrize("restart", [True, False])
def test_restart_draws_anew_and_going_on_does_not(restart: bool, make: Any) -> None:
    tuner = make(restart=restart, inner=pt.SGD(1e-9), inner_steps=1)
    tuner.hypergradient()
    first = params(tuner)["weight"]
    tuner.hypergradient()
    assert torch.allclose(first, params(tuner)["weight"], atol=1e-6) != restart


def test_chains_start_apart_and_the_risk_is_their_mean(make: Any) -> None:
    tuner = make(chains=3)
    value = tuner.hypergradient()
    states = tuner.outer_run.chains.parts[0].states
    assert states is not None
    risks = []
    for state in states:
        tuner.problem.load(state.params, state.buffers)
        risks.append(tuner.problem.evaluate(tuner.problem.valid).risk)
    assert len(set(risks)) == 3
    assert value.risk == pytest.approx(sum(risks) / 3, rel=1e-6)


def test_own_distribution_of_the_start(make: Any) -> None:
    def initial(generator: torch.Generator) -> Params:
        return {"weight": torch.randn(3, 4, generator=generator), "bias": torch.full((3,), 7.0)}

    tuner = make(initial=initial, restart=True, inner=pt.SGD(1e-9), inner_steps=1)
    tuner.hypergradient()
    first = params(tuner)
    tuner.hypergradient()
    assert torch.allclose(first["bias"], torch.tensor(7.0))
    assert not torch.allclose(first["weight"], params(tuner)["weight"])


def test_online_is_algorithm_c2_written_out(make: Any, linear: Any, classes: Any) -> None:
    """λ moves by ζ∇_λ‖Δ_t‖ at every inner step, and by ∇R_V (T1–T2) between rounds; K = 0 for the path."""
    double = torch.float64
    zeta, lr, outer_lr, steps = 0.3, 0.1, 0.05, 4
    (x, y), (xv, yv) = classes(12, 1, double), classes(10, 2, double)
    model = linear(0, double)
    decay = pt.WeightDecay(model, per="global", init=0.2)
    tuner = make(
        model,
        decay,
        train=(x, y),
        valid=(xv, yv),
        inner=pt.SGD(lr),
        inner_steps=steps,
        objective=pt.PACBayes(zeta),
        online=True,
        outer_lr=outer_lr,
    )
    theta = [p.detach().clone().requires_grad_() for p in linear(0, double).parameters()]
    lam = torch.tensor(0.2, dtype=double)
    pending = torch.zeros((), dtype=double)
    for _ in range(3):
        lam = lam - outer_lr * pending
        for _ in range(steps):
            train = torch.autograd.grad(F.cross_entropy(F.linear(x, *theta), y), theta)
            valid = torch.autograd.grad(F.cross_entropy(F.linear(xv, *theta), yv), theta)
            leaf, before, used = lam.clone().requires_grad_(), theta, lam
            gap = [t + leaf * p.detach() - v for t, p, v in zip(train, theta, valid, strict=True)]
            norm = torch.cat([g.reshape(-1) for g in gap]).norm()
            (slope,) = torch.autograd.grad(norm, leaf)
            theta = [(p - lr * (t + lam * p)).detach().requires_grad_() for t, p in zip(train, theta, strict=True)]
            lam = lam - outer_lr * zeta * slope
        risk = torch.autograd.grad(F.cross_entropy(F.linear(xv, *theta), yv), theta)
        pending = sum((-lr * (g * p.detach()).sum() for g, p in zip(risk, before, strict=True)), start=pending * 0)
        assert used is not lam
    tuner.fit(3, progress=False)
    assert float(decay.values["all"]) == pytest.approx(float(lam), rel=1e-10)
    for ours, theirs in zip(model.parameters(), theta, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("estimator", [pt.Windowed(4), pt.ForwardMode()], ids=str)
def test_online_estimators_replay_each_step_under_its_own_lambda(estimator: Any, make: Any) -> None:
    """K = T, W = T and forward mode are the same gradient, also when λ moved on the way."""
    found = []
    for risk in (pt.Truncated(4), estimator):
        tuner = make(hypergradient=risk, online=True, outer_lr=5.0)
        tuner.fit(1, progress=False)
        found.append({name: p.grad.clone() for name, p in tuner.problem.hyper.named_parameters()})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-7)


def test_plain_run_is_plain_training(make: Any, linear: Any, classes: Any) -> None:
    tuner = make(batch_size=None, outer_lr=2.0)
    result = tuner.fit(3, test=classes(30, 3), progress=False)
    model, (x, y) = linear(), classes(12, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for row in result.plain_rows:
        for _ in range(4):
            optimizer.zero_grad()
            penalty = 0.5 * 0.05 * sum((p**2).sum() for p in model.parameters())
            (F.cross_entropy(model(x), y) + penalty).backward()
            optimizer.step()
        with torch.no_grad():
            for name, data in {"train": (x, y), "valid": classes(10, 2), "test": classes(30, 3)}.items():
                risk = float(F.cross_entropy(model(data[0]), data[1]))
                assert row[f"{name}_risk"] == pytest.approx(risk, rel=1e-5)
    assert len(result.plain_rows) == 3
    assert result.plain_rows[-1]["valid_risk"] != result.rows[-1]["valid_risk"]


@pytest.mark.slow
def test_tuning_lowers_the_objective(make: Any) -> None:
    rows = make(restart=False, outer_lr=0.5, inner_steps=20).fit(20, progress=False).rows
    assert rows[-1]["objective"] < rows[0]["objective"]


@pytest.mark.slow
def test_check_changes_nothing(make: Any) -> None:
    tuner = make(batch_size=5, inner=NOISY)
    tuner.fit(2, progress=False)
    before = params(tuner), hyper(tuner)
    first = pt.check_hypergradient(tuner)
    assert first.passed
    assert torch.equal(first.estimate, pt.check_hypergradient(tuner).estimate)
    assert equal(before[0], params(tuner))
    assert equal(before[1], hyper(tuner))
    reference = make(batch_size=5, inner=NOISY)
    assert history(reference, 4)["objective"][2] == history(tuner, 2)["objective"][0]


def test_user_keeps_the_same_modules(make: Any, linear: Any) -> None:
    model: nn.Module = linear()
    weight: Tensor = model.weight
    result = make(model).fit(2, progress=False)
    assert result.model is model
    assert model.weight is weight
    assert weight.requires_grad
    assert weight.grad is None


@pytest.mark.parametrize("k", [1, 3])
def test_a_round_computes_every_gradient_once(k: int, make: Any) -> None:
    """Two passes a step, one for the risk at θ_T, and one again for every step that is differentiated by θ."""
    rows: list[int] = []

    def loss(prediction: Any, target: Any) -> Any:
        rows.append(len(target))
        return torch.nn.functional.cross_entropy(prediction, target)

    tuner = make(loss=loss, inner=pt.Adam(lr=0.1), inner_steps=4, hypergradient=pt.Truncated(k), engine="eager")
    tuner.hypergradient()
    rows.clear()
    tuner.hypergradient()
    assert (rows.count(12), rows.count(10)) == (4 + k - 1, 4 + 1)
