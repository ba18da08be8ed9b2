"""The settings of section 4.2 and the tuners they make."""

import dataclasses

import pytest
import torch

import pactune as pt
from pactune.errors import SettingError
from pactune.paper.data import load_images
from pactune.paper.weight_decay.setting import PAPER, StudySetting, builder, evaluation_set, paper_zeta

SMALL = StudySetting(data="digits", inner_steps=3, lr=1e-2)


@pytest.fixture(scope="module")
def images():
    return load_images("digits")


def test_defaults_are_the_papers(images):
    tuner = builder(StudySetting(data="digits"), images, "cpu")(zeta=1e-6, draw=0, init=0)
    group = tuner.outer.param_groups[0]
    assert (tuner.inner, tuner.inner_steps) == (pt.Adam(lr=1e-4), 1000)
    assert (group["lr"], group["alpha"], group["eps"], group["momentum"]) == (1e-2, 0.99, 1e-8, 0)
    assert (tuner.settings.risk_estimator, tuner.settings.path_estimator) == (pt.Truncated(1), pt.Truncated(0))
    assert (tuner.chains, tuner.restart, tuner.online) == (1, False, False)
    assert (tuner.problem.train.rows, tuner.problem.valid.rows) == (50, 50)
    assert all(not value.any() for value in tuner.problem.hyperparameters().values())


@pytest.mark.parametrize("pair", PAPER)
def test_zeta_is_the_printed_one_in_the_scale_of_eq_5(pair):
    """Ours is printed²/2 offline and printed² online; the printed values have three digits, hence 1 %."""
    row = PAPER[pair]
    assert row.offline == pytest.approx(row.printed**2 / 2, rel=0.01)
    assert row.online == pytest.approx(row.printed_online**2, rel=0.01)
    assert paper_zeta(*pair) == row.offline
    assert paper_zeta(*pair, online=True) == row.online


def test_names_hold_what_differs_from_the_paper():
    assert StudySetting().name == "model=linear,data=mnist"
    other = StudySetting(model="resnet18", data="cifar10", online=True, path="windowed-10", inner_steps=5)
    assert other.name == "model=resnet18,data=cifar10,online=True,path=windowed-10,inner_steps=5"
    with pytest.raises(SettingError, match="truncated-K or windowed-W, got 'full'"):
        StudySetting(path="full").estimator()


def test_cells_differ_in_images_and_starts(images):
    build = builder(SMALL, images, "cpu")
    base, other_init, other_draw = (build(zeta=0.0, draw=d, init=i) for d, i in ((0, 0), (0, 1), (1, 0)))
    same = build(zeta=1e-3, draw=0, init=0)
    weight = {id(t): t.problem.parameters()["weight"] for t in (base, other_init, other_draw, same)}
    assert torch.equal(weight[id(base)], weight[id(same)])
    assert not torch.equal(weight[id(base)], weight[id(other_init)])
    assert not torch.equal(weight[id(base)], weight[id(other_draw)])
    x = {id(t): t.problem.train.first().data[0] for t in (base, other_init, other_draw)}
    assert torch.equal(x[id(base)], x[id(other_init)])
    assert not torch.equal(x[id(base)], x[id(other_draw)])


def test_alone_follows_the_regularizer_only(images):
    """At ζ = 0 there is then nothing to follow; with the risk there is."""
    alone = dataclasses.replace(SMALL, alone=True)
    one = builder(alone, images, "cpu")(zeta=1.0, draw=0, init=0)
    one.hypergradient()
    gradient = {name: p.grad.clone() for name, p in one.problem.hyper.named_parameters()}
    two = builder(alone, images, "cpu")(zeta=2.0, draw=0, init=0)
    two.hypergradient()
    for name, p in two.problem.hyper.named_parameters():
        assert torch.allclose(p.grad, 2 * gradient[name])
        assert p.grad.abs().max() > 0


def test_restart_at_one_start_or_at_fresh_ones(images):
    draws = {}
    for start in ("same", "fresh"):
        tuner = builder(dataclasses.replace(SMALL, start=start), images, "cpu")(zeta=0.0, draw=0, init=0)
        draws[start] = [tuner.outer_run.inputs.draw(round_index, 0)["weight"] for round_index in (0, 1)]
        first = tuner.problem.parameters()["weight"]
        assert torch.equal(draws[start][0], first) == (start == "same")
    assert torch.equal(*draws["same"])
    assert not torch.equal(*draws["fresh"])


def test_residual_network_runs_in_both_protocols(images):
    """One inner step; the protocols train alike and evaluate differently."""
    rows = {}
    for protocol in ("eval", "paper"):
        setting = StudySetting(model="resnet18", data="digits", inner_steps=1, rows=6, protocol=protocol)
        test = tuple(part[:60] for part in evaluation_set(setting, images, "cpu"))
        result = builder(setting, images, "cpu")(zeta=1e-6, draw=0, init=0).fit(1, test=test, plain_steps=0)
        rows[protocol] = result.rows[0]
    assert rows["eval"]["regularizer"] == pytest.approx(rows["paper"]["regularizer"])
    assert rows["eval"]["weight_norm"] == pytest.approx(rows["paper"]["weight_norm"])
    assert rows["eval"]["test_risk"] != pytest.approx(rows["paper"]["test_risk"], rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_gives_the_numbers_of_the_cpu(images):
    rows = {}
    for device in ("cpu", "cuda"):
        build = builder(SMALL, images, device)
        test = evaluation_set(SMALL, images, device)
        rows[device] = build(zeta=1e-6, draw=0, init=0).fit(3, test=test).rows[-1]
    for name in ("regularizer", "test_risk", "weight_norm"):
        assert rows["cuda"][name] == pytest.approx(rows["cpu"][name], rel=1e-3)
