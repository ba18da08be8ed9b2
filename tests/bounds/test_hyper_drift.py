"""The hyper-drift objective: its closed form for weight decay, its scale, its kink at λ0, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.problem.provenance import Provenance


def make(objective: pt.HyperDrift, *, init: float = 0.3, **settings: Any) -> pt.Tuner:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (40,), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 3, dtype=torch.float64)
    hyper = settings.pop("hyper", pt.WeightDecay)(model, **settings.pop("options", {"init": init}))
    problem = pt.Problem(model, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=F.cross_entropy)
    defaults = {"inner": pt.Langevin(0.1, 30.0), "inner_steps": 6, "restart": True}
    return pt.Tuner(
        problem,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.01),
        objective=objective,
        **(defaults | settings),
    )


def test_the_summand_of_weight_decay_is_the_decayed_parameters() -> None:
    tuner = make(pt.HyperDrift(0.5, default=0.1))
    states = tuner.outer_run.chains.parts[0].starts(tuner.problem.hyperparameters())[0]
    state, total = states[0], 0.0
    trajectory = tuner.outer_run.plan(0.5).trajectory
    for t in range(6):
        total += sum(float(((0.3 - 0.1) * p).square().sum()) for p in state.params.values())
        data = tuner.outer_run.inputs.step_data(t, 1)[0]
        seen = trajectory.observe(state, tuner.problem.hyperparameters(), data, by_hyper=False, by_params=False)
        state = trajectory.advance(state, tuner.problem.hyperparameters(), data, seen)
    assert tuner.hypergradient().regularizer == pytest.approx(math.sqrt(total), rel=1e-12)


def test_theory_is_the_root_of_the_divergence_of_the_certificate() -> None:
    """ζ√Y = √(KL/2n_V) with the KL that the chains of the validation side record."""
    tuner = make(pt.HyperDrift("theory", default=0.1), chains=400)
    problem = tuner.problem
    default = {name: torch.full_like(v, 0.1) for name, v in problem.hyperparameters().items()}
    provenance = Provenance().touch("default hyper")
    claim = bounds.ValidationSide(
        problem, CoupledChains(0.1, 30.0, 6), provenance, models=400, seed=9, default_hyper=default
    )
    kl = float(claim.paths().kl.mean())
    value = tuner.hypergradient()
    # two independent means over 400 chains each; the summand varies by about a fifth between chains
    assert tuner.settings.zeta * value.regularizer == pytest.approx(math.sqrt(kl / (2 * 20)), rel=0.05)


def test_at_the_default_the_regularizer_and_its_gradient_are_zero() -> None:
    tuners = [make(pt.HyperDrift(zeta)) for zeta in (10.0, 0.0)]
    value, bare = (tuner.hypergradient() for tuner in tuners)
    assert value.regularizer == 0.0
    assert value.total == bare.total
    for p, q in zip(*(tuner.problem.hyper.parameters() for tuner in tuners), strict=True):
        assert torch.equal(p.grad, q.grad)
        assert p.grad.any()


def test_zeta_draws_the_hyperparameters_to_the_default() -> None:
    ends = []
    for zeta in (0.0, 1.0):
        tuner = make(pt.HyperDrift(zeta, default=0.1), options={"per": "tensor", "init": 0.3})
        result = tuner.fit(20, progress=False, plain_steps=0)
        ends.append(sum(float((p.detach() - 0.1).abs()) for p in result.hyper.parameters()))
    assert ends[1] < 0.8 * ends[0]


def test_default_by_name() -> None:
    tuner = make(pt.HyperDrift(0.5))
    named = {name: torch.full_like(v, 0.1) for name, v in tuner.problem.hyperparameters().items()}
    assert make(pt.HyperDrift(0.5, default=named)).hypergradient().regularizer > 0


def test_refusals() -> None:
    with pytest.raises(pt.SettingError, match="step size"):
        make(pt.HyperDrift("theory"), hyper=pt.LearningRates, options={})
    with pytest.raises(pt.SettingError, match="initial parameters"):
        make(pt.HyperDrift("theory"), hyper=pt.Initialization, options={})
    with pytest.raises(pt.SettingError, match="HyperDrift must be a number"):
        pt.HyperDrift("auto")  # type: ignore[arg-type]
    with pytest.raises(pt.SettingError, match="it lacks"):
        make(pt.HyperDrift(0.5, default={})).hypergradient()
