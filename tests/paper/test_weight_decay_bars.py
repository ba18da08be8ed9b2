"""The committed results of section 4.2 show what they must."""

from pathlib import Path

import pytest

from pactune.paper.weight_decay.records import read_studies
from pactune.paper.weight_decay.rules import compare, summarise
from pactune.paper.weight_decay.setting import paper_zeta

RESULTS = Path(__file__).parents[2] / "results" / "weight-decay"


def table(model, data):
    found = {study.name: study for study in read_studies(RESULTS)}
    return found[f"table-{model}-{data}"]


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_linear_rows_are_complete(data):
    study = table("linear", data)
    assert study.finished == study.asked
    assert study.settings["outer_steps"] == 100
    found = summarise(study)
    assert {"plain", "zero", "min_norm", "regularized", "online", "oracle"} <= set(found.values)
    assert len(found.values["regularized"]) >= 10
    assert len(found.values["online"]) >= 10


@pytest.mark.parametrize("method", ["regularized", "online"])
@pytest.mark.parametrize(("data", "exceptions"), [("mnist", 0), ("cifar10", 1)])
def test_eq_5_is_above_zeta_0(data, exceptions, method):
    gain = compare(summarise(table("linear", data)), method, "zero")
    assert gain.wins == gain.of - exceptions
    assert gain.gain["low"] > 0


def test_eq_5_is_above_least_norm():
    """On nearly every draw of CIFAR-10, and in the mean on MNIST, where least norm wins most draws and loses big."""
    cifar = compare(summarise(table("linear", "cifar10")), "regularized", "min_norm")
    assert cifar.wins == cifar.of - 2
    assert cifar.gain["low"] > 0
    assert compare(summarise(table("linear", "mnist")), "regularized", "min_norm").gain["mean"] > 0


def test_automatic_zeta_is_above_its_aim_on_cifar():
    found = summarise(table("linear", "cifar10"))
    assert found.interval("auto")["mean"] >= 0.205
    for other in ("zero", "plain"):
        gain = compare(found, "auto", other)
        assert gain.wins == gain.of - 1
        assert gain.of >= 10


def test_automatic_zeta_is_above_its_aim_on_mnist():
    found = summarise(table("linear", "mnist"))
    assert found.interval("auto")["mean"] >= 0.675
    for other in ("zero", "plain", "regularized"):
        gain = compare(found, "auto", other)
        assert gain.wins == gain.of >= 10


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_resnet18_has_three_draws_with_eq_5_above_zeta_0(data):
    study = table("resnet18", data)
    assert study.finished == study.asked
    found = summarise(study)
    assert found.steps == 100
    gain = compare(found, "regularized", "zero")
    assert gain.wins == gain.of >= 3


@pytest.mark.parametrize(("data", "exceptions"), [("mnist", 0), ("cifar10", 1)])
def test_resnet18_under_eq_5_is_above_least_norm(data, exceptions):
    gain = compare(summarise(table("resnet18", data)), "regularized", "min_norm")
    assert gain.wins == gain.of - exceptions
    assert gain.gain["mean"] > 0


def test_resnet18_on_cifar_is_above_plain_training_under_eq_5_alone():
    """Plain training ran over all outer steps there; ζ = 0 beats it on one draw of three."""
    found = summarise(table("resnet18", "cifar10"))
    gain, bare = (compare(found, method, "plain") for method in ("regularized", "zero"))
    assert gain.wins == gain.of == 3
    assert bare.wins == 1


def test_resnet18_on_mnist_is_above_plain_training_under_eq_5():
    """Plain training ran over all outer steps; ζ = 0 beats it on two draws of three."""
    found = summarise(table("resnet18", "mnist"))
    gain, bare = (compare(found, method, "plain") for method in ("regularized", "zero"))
    assert gain.wins == gain.of == 3
    assert bare.wins == 2


def test_resnet34_has_three_draws_with_eq_5_above_zeta_0_and_least_norm():
    study = table("resnet34", "mnist")
    assert study.finished == study.asked
    found = summarise(study)
    assert found.steps == 100
    for other in ("zero", "min_norm"):
        gain = compare(found, "regularized", other)
        assert gain.wins == gain.of == 3


def test_resnet34_is_above_plain_training_under_eq_5():
    study = table("resnet34", "mnist")
    assert {len(run.plain) for run in study.where(zeta=0.0)} == {100}
    gain = compare(summarise(study), "regularized", "plain")
    assert gain.wins == gain.of == 3


def test_resnet18_online_is_above_zeta_0_and_plain_training_and_below_offline_in_the_mean():
    found = summarise(table("resnet18", "mnist"))
    for other in ("zero", "plain"):
        gain = compare(found, "online", other)
        assert gain.wins == gain.of == 3
    offline = compare(found, "regularized", "online")
    assert offline.gain["mean"] > 0


def test_resnet34_on_cifar_is_not_above_least_norm_under_eq_5():
    """The paper has a gain of 1.7 points over least norm. Here there is none in accuracy, and one draw ties ζ = 0."""
    study = table("resnet34", "cifar10")
    assert study.finished == study.asked == 6
    found = summarise(study)
    assert found.steps == 100
    zero, least = (compare(found, "regularized", other) for other in ("zero", "min_norm"))
    assert (zero.wins, zero.of) == (1, 3)
    assert zero.gain["high"] < 0.001
    assert (least.wins, least.of) == (0, 3)


def test_resnet34_on_cifar_is_above_plain_training_at_zeta_0():
    """Plain training ran over all outer steps; Eq. 5 beats it on two draws of three."""
    study = table("resnet34", "cifar10")
    assert {len(run.plain) for run in study.where(zeta=0.0)} == {100}
    found = summarise(study)
    for method, wins in (("zero", 3), ("min_norm", 3), ("regularized", 2)):
        gain = compare(found, method, "plain")
        assert (gain.wins, gain.of) == (wins, 3)


def test_resnet34_on_cifar_has_smaller_weights_and_test_losses_under_eq_5():
    study = table("resnet34", "cifar10")
    tuned = [run for run in study.records if run.cell["zeta"]]
    for zero, other in zip(study.where(zeta=0.0), tuned, strict=True):
        assert zero.cell["draw"] == other.cell["draw"]
        for name in ("test_risk", "weight_norm"):
            assert other.rows[-1][name] < zero.rows[-1][name] / 1.9


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
@pytest.mark.parametrize("model", ["linear", "resnet18", "resnet34"])
def test_eq_5_has_less_than_half_the_test_loss_of_zeta_0_on_every_draw(model, data):
    """The exceptions above are exceptions in accuracy alone."""
    study = table(model, data)
    zero, tuned = (
        {
            (run.cell["draw"], run.cell["init"]): run.rows[-1]["test_risk"]
            for run in study.where(zeta=zeta)
            if not run.setting["online"]
        }
        for zeta in (0.0, paper_zeta(model, data))
    )
    assert len(zero) == (12 if model == "linear" else 3)
    assert zero.keys() == tuned.keys()
    for key, loss in tuned.items():
        assert loss < 0.5 * zero[key]
