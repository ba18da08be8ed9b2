"""Certificates: what they say, what they rest on, and what is refused, condition by condition."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.bounds.losses import mean_losses
from pactune.errors import CertificateError, SettingError
from pactune.problem.provenance import DataMark, Provenance

CHAIN = CoupledChains(0.2, 50.0, 20)
FREE = Provenance().touch("prior hyper").touch("default hyper").touch("initial").touch("model").touch("hyper")


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    return torch.randn(count, 4, generator=generator) + 2 * F.one_hot(y, 4), y


def problem(model: nn.Module | None = None, hyper: nn.Module | None = None, **data: Any) -> pt.Problem:
    model = nn.Linear(4, 3) if model is None else model
    hyper = pt.WeightDecay(model, per="global") if hyper is None else hyper
    return pt.Problem(model, hyper, **({"train": rows(200), "valid": rows(200, 1)} | data), loss=F.cross_entropy)


def train_side(p: pt.Problem | None = None, **settings: Any) -> bounds.TrainSide:
    return bounds.TrainSide(p or problem(), CHAIN, **({"provenance": FREE, "models": 4} | settings))


def validation_side(p: pt.Problem | None = None, **settings: Any) -> bounds.ValidationSide:
    p = p or problem()
    defaults = {"provenance": FREE, "models": 4, "default_hyper": p.hyperparameters()}
    return bounds.ValidationSide(p, CHAIN, **(defaults | settings))


# What a certificate says


def test_train_side_is_the_path_bound_of_its_parts() -> None:
    claim = train_side(seed=5)
    certificate = pt.certify(claim, delta=0.1, grid=7)
    paths = claim.paths()
    risk = float(mean_losses(claim.problem, paths.params, claim.problem.train, bounds.ZeroOne()).mean())
    expected = bounds.path_bound(risk, float(paths.log_ratios.mean()), 200, 0.1 / 7)
    assert certificate.value == pytest.approx(expected)
    assert (certificate.mode, certificate.n, certificate.models, certificate.grid) == ("train side", 200, 4, 7)
    assert certificate.empirical <= certificate.value < 0.6
    assert certificate.confidence == 0.9
    assert certificate.kl != 0


def test_union_is_nearer_to_the_prior() -> None:
    alone, union = (train_side(union=u).paths().kl.mean() for u in (False, True))
    assert float(union) == pytest.approx(float(alone) / 4, rel=0.1)


def test_the_posterior_trains_on_both_samples_unless_told_otherwise() -> None:
    p = problem()
    assert torch.equal(train_side(p).paths().kl, train_side(p, union=True).paths().kl)
    assert not torch.equal(train_side(p).paths().kl, train_side(p, union=False).paths().kl)


def test_validation_side_costs_nothing_without_tuning_and_something_with_it() -> None:
    p = problem(hyper=None)
    plain = pt.certify(validation_side(p))
    assert plain.kl == 0
    tuned = problem()
    tuned.load_hyper({name: value + 0.1 for name, value in tuned.hyperparameters().items()})
    default = {name: torch.zeros_like(value) for name, value in tuned.hyperparameters().items()}
    assert pt.certify(validation_side(tuned, default_hyper=default)).kl != 0


def test_one_model_and_the_same_seed_give_the_same_number() -> None:
    first, again, other = (pt.certify(train_side(models=1, seed=s)).value for s in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("side", ["train", "valid"])
def test_paths_are_trained_in_training_mode_and_judged_in_eval_mode(side: str) -> None:
    class Shifted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 3 * self.training * torch.arange(self.out_features)

    make = train_side if side == "train" else validation_side
    torch.manual_seed(0)
    found, start = [], Shifted(4, 3).state_dict()
    for training in (True, False):
        model = Shifted(4, 3).train(training)
        model.load_state_dict(start)
        claim = make(problem(model))
        found.append(pt.certify(claim).value)
        paths = claim.paths()
    wrong = [one.argmax(1) != claim.sample.source.first().data[1] for one in _scores(paths.params, claim)]
    assert found[0] == found[1]
    assert claim.evidence(paths).empirical == pytest.approx(float(torch.stack(wrong).double().mean()))


def _scores(params: dict[str, Tensor], claim: Any) -> list[Tensor]:
    x = claim.sample.source.first().data[0]
    return [x @ weight.T + bias for weight, bias in zip(params["weight"], params["bias"], strict=True)]


def test_the_start_is_not_the_one_that_tuned() -> None:
    """λ depends on the tuner's draws of θ_0, so the certified chains must have others, at the same seed too."""
    p = problem()
    tuner = pt.Tuner(
        p,
        inner=pt.Langevin(0.2, 50.0),
        inner_steps=2,
        outer=torch.optim.SGD(p.hyper.parameters(), lr=0.1),
        objective=pt.PACBayes("theory"),
        restart=True,
    )
    used = tuner.outer_run.inputs.draw(0, 0)["weight"]
    assert not any(torch.allclose(used, drawn) for drawn in validation_side(p, seed=0).start()["weight"])


def test_clipped_cross_entropy_is_in_its_own_units() -> None:
    loss = bounds.ClippedCrossEntropy(2.0)
    certificate = pt.certify(train_side(loss=loss))
    assert 0 < certificate.empirical < certificate.value <= 2.0
    scores, target = torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 0])
    torch.testing.assert_close(loss.rows(scores, target), torch.tensor([1.234e-4, 2.0]), atol=1e-6, rtol=0)
    assert bounds.ZeroOne().rows(scores, target).tolist() == [0.0, 1.0]


def test_losses_of_stacked_models_are_those_of_each() -> None:
    claim = train_side()
    paths = claim.paths()
    found = claim.losses(paths, claim.problem.valid)
    for chain in range(4):
        claim.problem.load({n: v[chain] for n, v in paths.params.items()}, {})
        accuracy = claim.problem.evaluate(claim.problem.valid).metrics["accuracy"]
        assert float(found[chain]) == pytest.approx(1 - accuracy)


def test_certificate_prints_its_assumptions_and_is_plain_data() -> None:
    certificate = pt.certify(train_side(provenance=FREE.state("somebody vouches for this")))
    text = str(certificate)
    for words in ("probability 0.95", "train side", "which holds if", "independent draws", "somebody vouches"):
        assert words in text
    assert json.loads(json.dumps(certificate.describe()))["n"] == 200
    vacuous = replace(certificate, value=1.0)
    assert vacuous.vacuous
    assert "(vacuous)" in str(vacuous)


def test_hold_out() -> None:
    model, (x, y) = nn.Linear(4, 3), rows(300, 9)
    claim = bounds.HoldOut(model, (x, y), provenance=FREE)
    error = float((model(x).argmax(1) != y).double().mean())
    certificate = pt.certify(claim, delta=0.05)
    assert certificate.value == pytest.approx(bounds.hold_out(error, 300, 0.05))
    assert certificate.mode == "hold-out"
    assert model.training


def test_a_tuned_result_carries_what_a_certificate_asks_for() -> None:
    model = nn.Linear(4, 3)
    hyper = pt.WeightDecay(model)
    p = problem(model, hyper)
    tuner = pt.Tuner(
        p,
        inner=pt.Langevin(0.2, 50.0),
        inner_steps=5,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.01),
        objective=pt.HyperDrift("theory"),
    )
    result = tuner.fit(2, progress=False, test=rows(50, 8))
    shown = pt.certify(bounds.HoldOut(result.model, rows(50, 8), result.provenance))
    assert any("history of the run showed" in words for words in shown.assumptions)
    claim = bounds.ValidationSide(p, CHAIN, result.provenance, default_hyper=tuner.start_hyper)
    certificate = pt.certify(claim)
    assert any("started from values chosen without the data" in words for words in certificate.assumptions)
    fresh = pt.certify(bounds.HoldOut(result.model, rows(100, 7), result.provenance))
    assert fresh.n == 100
    assert not any("history of the run showed" in words for words in fresh.assumptions)
    with pytest.raises(CertificateError, match="fresh sample: valid"):
        pt.certify(bounds.HoldOut(result.model, rows(200, 1), result.provenance))


# What is refused


def gated() -> pt.Problem:
    class Gated(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.gate = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.gate(x))

    model = Gated()
    return problem(model, model.gate)


def seen(thing: str, index: int) -> Callable[[], bounds.Claim]:
    """Return a claim whose `thing` has seen the bound sample."""

    def claim() -> bounds.Claim:
        p = problem()
        provenance = FREE.touch(thing, p.sample_ids[index])
        zeros = {name: torch.zeros_like(v) for name, v in p.parameters().items()}
        settings: dict[str, Any] = {"provenance": provenance, "initial": lambda _: zeros}
        return train_side(p, **settings) if index == 0 else validation_side(p, **settings)

    return claim


REFUSALS: dict[str, Callable[[], bounds.Claim]] = {
    "independent prior: the λ of the prior": seen("prior hyper", 0),
    "independent prior: the distribution of θ_0": seen("initial", 0),
    "independent prior: the default λ0": seen("default hyper", 1),
    "independent prior: the preparation of the features": seen("features", 1),
    "disjoint samples: training and validation sample share 200 rows": lambda: train_side(problem(valid=rows(200))),
    "known provenance: it is not recorded what touched the prior hyper": lambda: train_side(provenance=Provenance()),
    "known provenance: it is not recorded what touched the default hyper": lambda: validation_side(
        provenance=Provenance()
    ),
    "known provenance: it is not recorded what touched the model": lambda: bounds.HoldOut(
        nn.Linear(4, 3), rows(9), Provenance()
    ),
    "known λ0: `default_hyper` lacks": lambda: validation_side(default_hyper={}),
    "enough rows: the bound sample has 7": lambda: train_side(problem(train=rows(7))),
    "equal noise: λ changes the step size": lambda: train_side(
        problem(m := nn.Linear(4, 3), nn.ModuleList([pt.LearningRates(m)]))
    ),
    "common start: λ changes the initial": lambda: validation_side(problem(m := nn.Linear(4, 3), pt.Initialization(m))),
    "prediction free of λ": lambda: validation_side(gated()),
    "drift as a function of θ: 1 keeps running statistics": lambda: train_side(
        problem(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    ),
    "drift as a function of θ: the training forward draws random numbers": lambda: train_side(
        problem(nn.Sequential(nn.Dropout(), nn.Linear(4, 3)))
    ),
}


@pytest.mark.parametrize("condition", REFUSALS)
def test_a_condition_that_is_not_met_is_named(condition: str) -> None:
    with pytest.raises(CertificateError) as caught:
        pt.certify(REFUSALS[condition]())
    assert any(words.startswith(condition) for words in caught.value.conditions), caught.value.conditions
    assert condition in str(caught.value)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="delta"):
        pt.certify(train_side(), delta=1.5)
    with pytest.raises(SettingError, match="grid"):
        pt.certify(train_side(), grid=0)
    with pytest.raises(SettingError, match="models"):
        train_side(models=0)


# Provenance


def mark(name: str, x: Tensor, **settings: Any) -> DataMark:
    p = problem(valid=(x, torch.zeros(len(x), dtype=torch.long)))
    return DataMark(name, p.valid, **settings)


def test_rows_are_known_by_content_however_they_were_cut() -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    whole, part, other = mark("whole", x), mark("part", x[[3, 5, 7]]), mark("other", x + 1)
    assert whole.shared(part) == 3
    assert whole.shared(other) == 0
    provenance = Provenance().touch("model", whole)
    assert provenance.touches("model", part) == ["whole (20 rows) shares 3 rows with part (3 rows)"]
    assert provenance.touch("model", whole).touched["model"] == (whole,)
    assert not provenance.knows("hyper")


def test_equal_rows_may_be_different_observations() -> None:
    x = torch.ones(4, 4)
    assert mark("a", x).shared(mark("b", x)) == 4
    assert mark("a", x, rows=range(4)).shared(mark("b", x, rows=range(4, 8))) == 0
    with pytest.raises(pt.DataError, match="one identifier"):
        _ = mark("a", x, rows=[1]).identifiers
