"""Numbers, flags and words of the wrong kind: each is refused by name, rule and value, never by an error of torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune import bounds, privacy
from tests.mistakes import Case, X, check_refused, fit, problem, tuner

NAN, HUGE = math.nan, 10**400
S = pt.SettingError
HALF = nn.Linear(4, 1)


def counted() -> bounds.CountedHoldOut:
    return bounds.CountedHoldOut(bounds.Evidence(0.1, None, 100, 1), fresh=True)


CASES: dict[str, Case] = {
    "delta a text": Case(lambda: bounds.hold_out(0.1, 100, "0.05"), S, r"`delta` must be in \(0, 1\), got '0.05'"),
    "delta a text to certify": Case(lambda: pt.certify(counted(), delta="0.05"), S, "`delta` must be in"),
    "grid beyond floats": Case(lambda: pt.certify(counted(), grid=HUGE), S, "`grid` must be .*1329 bits"),
    "a grid of texts": Case(lambda: bounds.catoni_grid(0.1, 1.0, 100, 0.05, "abc"), S, "`grid` must be a list"),
    "risk a tensor": Case(lambda: bounds.hold_out(torch.ones(2), 100, 0.05), S, "`risk`.*Tensor of shape"),
    "risk a 0-d tensor": Case(lambda: bounds.hold_out(torch.tensor(0.1), 9, 0.05), S, r"write float\(...\)"),
    "no claim": Case(lambda: pt.certify(3), S, "`claim` must be a claim"),
    "divergence of None": Case(lambda: bounds.maurer_seeger(0.1, None, 100, 0.05), S, "`kl` must be a number ≥ 0"),
    "path of NaN": Case(lambda: bounds.path_kl(NAN, 0.1, 10.0), S, "`squares` must be"),
    "epsilon a text": Case(lambda: privacy.delta_of("1", 1.0), S, "`epsilon` must be"),
    "mu complex": Case(lambda: privacy.epsilon_of(1e-5, 1j), S, "`mu` must be"),
    "mus a number": Case(lambda: privacy.compose(3.0), S, "`mus` must be a list"),
    "rows of None": Case(lambda: privacy.largest_step(0.5, 1e-6, rows=None, batch_size=3, clip=1.0), S, "`rows` must"),
    "temperature of zero": Case(lambda: privacy.DPSGLD(0.1, 1.0, 2, 0.0), S, "`inverse_temperature` must be positive"),
    "hits of a half": Case(lambda: privacy.epsilon_lower_bound(0.5, 1, 9, 1e-5), S, "`hits` must be a whole number"),
    "rate a text": Case(lambda: pt.SGD("0.1"), S, "`lr` must be a positive finite number, got '0.1'"),
    "rate True": Case(lambda: pt.SGD(True), S, "`lr` must be"),
    "rate beyond floats": Case(lambda: pt.Adam(HUGE), S, "`lr` must be .*1329 bits"),
    "a schedule that fails": Case(lambda: tuner(inner=pt.SGD(lambda t: 1 / 0)).fit(1), S, "`lr`: the schedule fails"),
    "a schedule of texts": Case(lambda: tuner(inner=pt.SGD(lambda t: "1")).fit(1), S, "its schedule gave '1'"),
    "momentum a text": Case(lambda: pt.SGD(0.1, momentum="0.9"), S, r"`momentum` must be in \[0, 1\)"),
    "nesterov a text": Case(lambda: pt.SGD(0.1, momentum=0.5, nesterov="no"), S, "`nesterov` must be True or False"),
    "betas a number": Case(lambda: pt.Adam(0.1, betas=0.9), S, r"`betas` must be two numbers in \[0, 1\)"),
    "clip a tensor": Case(lambda: pt.PACBayes(0.1, clip_valid=torch.ones(2)), S, "`clip_valid` must be a positive"),
    "zeta an array": Case(lambda: pt.PACBayes(torch.ones(2)), S, "`zeta` must be a finite number"),
    "fractions a number": Case(lambda: pt.AutoZeta(fractions=0.1), S, "`fractions` must be"),
    "limit a text": Case(lambda: pt.ForwardMode(limit="9"), S, "`limit` must be a whole number"),
    "series without end": Case(lambda: pt.Neumann(HUGE), S, "`steps` must be"),
    "alpha NaN": Case(lambda: pt.Identity(alpha=NAN), S, "`alpha` must be"),
    "restart a text": Case(lambda: tuner(restart="no"), S, "`restart` must be True or False, got 'no'"),
    "online one": Case(lambda: tuner(online=1), S, "`online` must be True or False"),
    "seed beyond 64 bits": Case(lambda: tuner(seed=HUGE), S, "`seed` must be a whole number"),
    "steps beyond 64 bits": Case(lambda: tuner(inner_steps=2**64), S, "`inner_steps` must be"),
    "start a dict": Case(lambda: tuner(initial={}), S, "`initial` must be a function"),
    "start of nothing": Case(lambda: tuner(initial=lambda g: None).fit(1), S, "`initial` must return every parameter"),
    "resume a text": Case(lambda: tuner().fit(1, resume="no"), S, "`resume` must be True or False"),
    "progress a text": Case(lambda: tuner().fit(1, progress="no"), S, "`progress` must be True or False, or None"),
    "tolerance a bool": Case(lambda: tuner().fit(1, tolerance=True), S, "`tolerance` must be ≥ 0"),
    "plain steps True": Case(lambda: tuner().fit(1, plain_steps=True), S, "`plain_steps` must be ≥ 0"),
    "directions a text": Case(lambda: pt.check_hypergradient(tuner(), directions="2"), S, "`directions` must be ≥ 1"),
    "check of nothing": Case(lambda: pt.check_hypergradient(3), S, "`tuner` must be a Tuner, got 3"),
    "average a text": Case(lambda: pt.CoherenceMonitor(HALF, F.mse_loss, average="no"), S, "`average` must be True"),
    "default a text": Case(lambda: pt.HyperDrift(0.1, default="0"), S, "`default` must be a finite number"),
    "default misshapen": Case(
        lambda: fit(objective=pt.HyperDrift(0.1, default={"values.weight": X, "values.bias": X})), S, "misshapen"
    ),
    "init a text": Case(lambda: pt.WeightDecay(HALF, init="0"), S, "`init` must be a number"),
    "init beyond float32": Case(lambda: pt.WeightDecay(HALF, init=1e300), S, "`init` must be a number that the model"),
    "rows a tensor": Case(lambda: pt.ExampleWeights(torch.zeros(8)), S, "`rows` must be the number of training ex"),
    "rows a float": Case(lambda: pt.ExampleWeights(8.0), S, "`rows` must be the number of training examples"),
    "decay of no model": Case(lambda: pt.WeightDecay([1, 2]), S, "`model` must be an nn.Module"),
    "start of no model": Case(lambda: pt.Initialization(None), S, "`model` must be an nn.Module"),
    "batch size a text": Case(lambda: problem(batch_size="4"), S, "`batch_size` must be at least 1"),
    "batch size a float": Case(lambda: problem(valid_batch_size=2.5), S, "`valid_batch_size` must be at least 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_gets_a_clear_error(name: str) -> None:
    check_refused(CASES[name])


def test_the_table_is_long() -> None:
    assert len(CASES) >= 50
