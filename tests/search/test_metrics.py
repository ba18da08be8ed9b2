"""Metrics: functions, names of scorers against scikit-learn itself, and the defaults."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.search.metrics import COLUMNS, as_metric
from pactune.search.predicted import scores_numbers
from tests.search.calls import tune

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.randn(30, 3, generator=GENERATOR)
CLASSES = torch.randint(0, 3, (30,), generator=GENERATOR)
LOGITS = torch.randn(30, 1, generator=GENERATOR)
HITS = (LOGITS + torch.randn(30, 1, generator=GENERATOR) > 0).float()
NUMBERS = torch.randn(30, 1, generator=GENERATOR)
TARGETS = NUMBERS + torch.randn(30, 1, generator=GENERATOR)


def value(metric: Any, loss: Any, predictions: Tensor, targets: Tensor) -> float:
    found = as_metric(metric, loss, predictions, targets)
    assert found.score is not None
    return found.score(predictions, targets)


def test_the_default_for_classes_is_the_accuracy() -> None:
    found = as_metric(None, F.cross_entropy, SCORES, CLASSES)
    assert (found.name, found.higher_is_better) == ("accuracy", True)
    assert value(None, F.cross_entropy, SCORES, CLASSES) == sk.accuracy_score(CLASSES, SCORES.argmax(1))


OF_ONE_LOGIT = {
    "function": F.binary_cross_entropy_with_logits,
    "module": nn.BCEWithLogitsLoss(),
    "partial": partial(F.binary_cross_entropy_with_logits, pos_weight=torch.tensor([3.0])),
    "own": lambda p, t: F.binary_cross_entropy_with_logits(p, 0.1 + 0.8 * t),
    "margin": lambda p, t: F.softplus((1 - 2 * t) * p).square().mean(),
}
OF_PROBABILITIES = {"function": F.binary_cross_entropy, "module": nn.BCELoss(), "partial": partial(nn.BCELoss())}


@pytest.mark.parametrize("loss", OF_ONE_LOGIT.values(), ids=OF_ONE_LOGIT)
@pytest.mark.parametrize("flat", [False, True])
def test_the_default_for_one_logit_is_the_accuracy(loss: Any, flat: bool) -> None:
    predictions, targets = (one.flatten() if flat else one for one in (LOGITS, HITS))
    assert as_metric(None, loss, predictions, targets).name == "accuracy"
    wanted = sk.accuracy_score(HITS.flatten() > 0.5, LOGITS.flatten() > 0)
    assert value(None, loss, predictions, targets) == pytest.approx(wanted)


@pytest.mark.parametrize("loss", OF_PROBABILITIES.values(), ids=OF_PROBABILITIES)
def test_a_probability_says_what_its_logit_says(loss: Any) -> None:
    chances = LOGITS.double().sigmoid()
    found, wanted = (
        as_metric(None, one, outputs, HITS)
        for one, outputs in ((loss, chances), (F.binary_cross_entropy_with_logits, LOGITS.double()))
    )
    assert (found.name, found.score(chances, HITS)) == ("accuracy", wanted.score(LOGITS, HITS))  # type: ignore[misc]
    assert found.tempered is not None
    assert wanted.tempered is not None
    torch.testing.assert_close(found.tempered(chances, HITS), wanted.tempered(LOGITS, HITS), rtol=1e-6, atol=1e-9)
    assert value("neg_log_loss", loss, chances, HITS) == pytest.approx(-sk.log_loss(HITS, chances))


@pytest.mark.parametrize(
    ("loss", "predictions", "targets"),
    [
        (F.mse_loss, NUMBERS, TARGETS),
        (F.mse_loss, NUMBERS, HITS),
        (F.l1_loss, NUMBERS, HITS),
        (F.huber_loss, NUMBERS, HITS),
        (F.poisson_nll_loss, NUMBERS, HITS),
        (lambda p, t: ((t - p) * 0.9).maximum((p - t) * 0.1).mean(), NUMBERS, HITS),
        (F.binary_cross_entropy_with_logits, LOGITS, HITS * 0.8),
        (F.cross_entropy, None, CLASSES),
        (F.cross_entropy, SCORES, None),
    ],
    ids=[
        "numbers",
        "squares of 0 and 1",
        "distances",
        "huber",
        "counts",
        "quantile",
        "soft labels",
        "no predictions",
        "no targets",
    ],
)
def test_the_default_otherwise_is_the_loss(loss: Any, predictions: Any, targets: Any) -> None:
    found = as_metric(None, loss, predictions, targets)
    assert (found.name, found.higher_is_better, found.score) == ("loss", False, None)


def softmax() -> Any:
    return SCORES.double().softmax(1).numpy()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("accuracy", lambda: sk.accuracy_score(CLASSES, SCORES.argmax(1))),
        ("balanced_accuracy", lambda: sk.balanced_accuracy_score(CLASSES, SCORES.argmax(1))),
        ("f1_macro", lambda: sk.f1_score(CLASSES, SCORES.argmax(1), average="macro")),
        ("neg_log_loss", lambda: -sk.log_loss(CLASSES, softmax())),
        ("roc_auc_ovr", lambda: sk.roc_auc_score(CLASSES, softmax(), multi_class="ovr")),
    ],
)
def test_scorers_of_classes(name: str, wanted: Any) -> None:
    assert value(name, F.cross_entropy, SCORES, CLASSES) == pytest.approx(wanted(), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("roc_auc", lambda y, s: sk.roc_auc_score(y, s)),
        ("average_precision", lambda y, s: sk.average_precision_score(y, s)),
        ("neg_log_loss", lambda y, s: -sk.log_loss(y, 1 / (1 + np.exp(-s)))),
        ("neg_brier_score", lambda y, s: -sk.brier_score_loss(y, 1 / (1 + np.exp(-s)))),
        ("accuracy", lambda y, s: sk.accuracy_score(y, s > 0)),
        ("f1", lambda y, s: sk.f1_score(y, s > 0)),
    ],
)
@pytest.mark.parametrize("columns", [1, 2])
def test_scorers_of_two_classes(name: str, wanted: Any, columns: int) -> None:
    """One logit, and two scores whose difference is that logit, have the same metric."""
    hits, logits = HITS.flatten().long(), LOGITS.flatten()
    expected = wanted(hits.numpy(), logits.double().numpy())
    if columns == 1:
        found = value(name, F.binary_cross_entropy_with_logits, LOGITS, HITS)
    else:
        found = value(name, F.cross_entropy, torch.stack([torch.zeros(30), logits], 1), hits)
    assert found == pytest.approx(expected, rel=1e-12)


def test_scorers_are_told_apart_as_scikit_learn_groups_them() -> None:
    """The module of the function is how scikit-learn sorts its metrics; no scorer says it in public."""
    for name in sk.get_scorer_names():
        scorer = sk.get_scorer(name)
        assert scores_numbers(scorer) == (scorer._score_func.__module__ == "sklearn.metrics._regression"), name


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("r2", sk.r2_score),
        ("neg_mean_absolute_error", lambda y, p: -sk.mean_absolute_error(y, p)),
        ("neg_root_mean_squared_error", lambda y, p: -(sk.mean_squared_error(y, p) ** 0.5)),
    ],
)
@pytest.mark.parametrize("outputs", [1, 2])
def test_scorers_of_numbers(name: str, wanted: Any, outputs: int) -> None:
    predictions, targets = NUMBERS.reshape(-1, outputs), TARGETS.reshape(-1, outputs)
    expected = wanted(targets.double().numpy(), predictions.double().numpy())
    if name == "neg_root_mean_squared_error" and outputs == 2:
        expected = -np.sqrt(((targets - predictions).double().numpy() ** 2).mean(0)).mean()
    assert value(name, F.mse_loss, predictions, targets) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", OF_ONE_LOGIT.values(), ids=OF_ONE_LOGIT)
def test_scorers_that_ask_for_probabilities_take_any_loss_of_a_logit(loss: Any) -> None:
    assert value("roc_auc", loss, LOGITS, HITS) == pytest.approx(sk.roc_auc_score(HITS, LOGITS))
    assert value("neg_log_loss", loss, LOGITS, HITS) == pytest.approx(-sk.log_loss(HITS, LOGITS.double().sigmoid()))


@pytest.mark.parametrize("name", ["roc_auc", "neg_log_loss", "f1"])
def test_a_scorer_of_classes_on_numbers_is_refused_in_words_of_ours(name: str) -> None:
    with pytest.raises(pt.SettingError, match=f"the scorer '{name}' fails on predictions that are numbers: ") as found:
        as_metric(name, F.mse_loss, NUMBERS, HITS)
    assert "pass a function metric(predictions, targets)" in str(found.value)
    assert "Predicted" not in str(found.value)


def test_a_scorer_is_what_its_name_is() -> None:
    f1 = sk.make_scorer(sk.f1_score, average="macro")
    assert value(f1, F.cross_entropy, SCORES, CLASSES) == value("f1_macro", F.cross_entropy, SCORES, CLASSES)
    auc = sk.make_scorer(sk.roc_auc_score, response_method=("decision_function", "predict_proba"))
    assert value(auc, OF_ONE_LOGIT["partial"], LOGITS, HITS) == value("roc_auc", OF_ONE_LOGIT["own"], LOGITS, HITS)
    distance = sk.make_scorer(sk.mean_absolute_error, greater_is_better=False)
    found = as_metric(distance, F.mse_loss, NUMBERS, TARGETS)
    assert (found.name, found.higher_is_better) == ("neg mean absolute error", True)
    assert value(distance, F.mse_loss, NUMBERS, TARGETS) == pytest.approx(-float((NUMBERS - TARGETS).abs().mean()))


def test_a_function_is_called_with_predictions_and_targets() -> None:
    def mean_distance(predictions: Tensor, targets: Tensor) -> Tensor:
        return (predictions - targets).abs().mean()

    found = as_metric(mean_distance, F.mse_loss, NUMBERS, TARGETS)
    assert (found.name, found.higher_is_better) == ("mean distance", True)
    mean_distance.higher_is_better = False  # type: ignore[attr-defined]
    assert not as_metric(mean_distance, F.mse_loss, NUMBERS, TARGETS).higher_is_better
    assert value(mean_distance, F.mse_loss, NUMBERS, TARGETS) == float((NUMBERS - TARGETS).abs().mean())


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("rock_auc", "scikit-learn scorer, got 'rock_auc'"),
        (3, "`metric` must be a function"),
        (lambda predictions, targets: predictions, "returns one number"),
        (lambda predictions, targets: 1 / 0, "ZeroDivisionError"),
        (lambda predictions: 0.0, "called as metric\\(predictions, targets\\)"),
    ],
    ids=["unknown", "number", "many numbers", "raises", "one argument"],
)
def test_a_metric_that_cannot_work_is_refused(metric: Any, message: str) -> None:
    with pytest.raises(pt.SettingError, match=message):
        as_metric(metric, F.cross_entropy, SCORES, CLASSES)


@pytest.mark.parametrize("missing", ["predictions", "targets"])
def test_a_metric_needs_predictions_and_targets(missing: str) -> None:
    given = {"predictions": SCORES, "targets": CLASSES} | {missing: None}
    with pytest.raises(pt.SettingError, match="tuples"):
        as_metric("accuracy", F.cross_entropy, **given)


def test_differences_are_shown_in_points() -> None:
    assert as_metric("balanced_accuracy", F.cross_entropy, SCORES, CLASSES).percent
    assert not as_metric("r2", F.mse_loss, NUMBERS, TARGETS).percent


CODES = torch.eye(3)[[1, 2, 0]]
OF_CLASSES = {
    "cross-entropy": F.cross_entropy,
    "a module": nn.CrossEntropyLoss(label_smoothing=0.2),
    "weights, one of them 0": lambda p, t: F.cross_entropy(p, t, weight=torch.tensor([1.0, 0.0, 9.0])),
    "margin": F.multi_margin_loss,
    "log-probabilities": F.nll_loss,
    "squares": lambda p, t: F.mse_loss(p, torch.eye(3)[t]),
}
OF_OTHERS = {
    "codes": lambda p, t: F.mse_loss(p, CODES[t]),
    "ranks": lambda p, t: F.binary_cross_entropy_with_logits(p, (t[:, None] > torch.arange(3)).float()),
    "quantiles": lambda p, t: ((t[:, None] - p) * torch.tensor([0.1, 0.5, 0.9])).clamp(min=0).mean(),
    "refused": lambda p, t: F.l1_loss(p, CODES[t]) if p.abs().sum() else 1 / 0,
}


@pytest.mark.parametrize("name", [*OF_CLASSES, *OF_OTHERS])
@pytest.mark.parametrize("given", [None, lambda p, t: 0.0], ids=["default", "function"])
def test_whole_numbers_are_classes_if_the_loss_says_so(name: str, given: Any) -> None:
    found = as_metric(given, {**OF_CLASSES, **OF_OTHERS}[name], SCORES, CLASSES)
    assert (found.tempered is not None) == (name in OF_CLASSES)
    if given is None:
        assert found.name == ("accuracy" if name in OF_CLASSES else "loss")


@pytest.mark.parametrize("strange", [-1, -100, 3])
def test_numbers_that_no_column_has_are_no_classes(strange: int) -> None:
    targets = torch.where(CLASSES == 0, strange, CLASSES)
    assert as_metric(None, nn.CrossEntropyLoss(ignore_index=strange), SCORES, targets).name == "loss"


def test_a_metric_has_a_column_of_its_own() -> None:
    def loss(predictions: Tensor, targets: Tensor) -> float:
        return 0.5

    assert as_metric(loss, F.cross_entropy, SCORES, CLASSES).name == "metric loss"


@pytest.mark.usefixtures("short_search")
def test_no_other_column_of_the_table_has_the_name_of_a_metric() -> None:
    assert set(tune(metric=loss_of_one).table.columns) == {*COLUMNS, "loss of one"}


def loss_of_one(predictions: Tensor, targets: Tensor) -> float:
    return float(F.cross_entropy(predictions[:1], targets[:1]))
