"""`TunedClassifier` and `TunedRegressor` keep the rules of scikit-learn, and say what `pt.tune` found."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.sklearn import TunedClassifier, TunedRegressor

pytestmark = pytest.mark.slow

# As few steps as possible: the rules do not depend on how well a model is trained.
QUICK: dict[str, Any] = {"folds": 3, "inner_steps": 5, "engine": "eager", "random_state": 0}
# A row of weight 2 is one observation, and the same row twice is two. The folds and the standard errors of the
# comparison count observations, so the two differ. That weight 0 leaves a row out is tested below.
NOT_EQUAL = {"check_sample_weight_equivalence_on_dense_data": "folds and standard errors count observations"}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((45, 3)) * [1.0, 100.0, 0.01] + [5.0, -300.0, 0.0]
LABELS = np.array(["low", "middle", "high"])[np.digitize(X[:, 0] + X[:, 1] / 100 + 3 - 5, [-0.7, 0.7])]
NUMBERS = 1000 + 50 * (X[:, 0] - 100 * X[:, 2]) + RNG.standard_normal(45)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the held-out rows less often, which takes most of the time of so small a problem."""
    for name, value in {"decays.ROUNDS": 5, "decays.MOST_ROUNDS": 5, "many.OUTER_STEPS": 3}.items():
        monkeypatch.setattr(f"pactune.search.{name}", value)
    monkeypatch.setattr(sys.modules["pactune.search.tune"], "OUTER_STEPS", 3)


@pytest.mark.parametrize(
    "estimator", [TunedClassifier(**QUICK), TunedRegressor(**QUICK)], ids=lambda e: type(e).__name__
)
def test_keeps_the_rules_of_scikit_learn(estimator: Any) -> None:
    found = check_estimator(estimator, expected_failed_checks=NOT_EQUAL, on_skip=None)
    assert len(found) > 40
    assert [one["check_name"] for one in found if one["status"] == "xfail"] == list(NOT_EQUAL)
    assert [one["check_name"] for one in found if one["status"] not in ("passed", "xfail", "skipped")] == []


def test_learns_labels_of_any_type() -> None:
    model = TunedClassifier(**QUICK).fit(X, LABELS)
    assert model.classes_.tolist() == ["high", "low", "middle"]
    assert model.score(X, LABELS) > 0.85
    assert np.allclose(model.predict_proba(X).sum(1), 1.0)
    assert model.decision_function(X).shape == (45, 3)
    assert list(model.result_.table["model"]) == ["plain training", "one decay", "the tuned model"]
    assert "accuracy" in model.result_.table
    assert "accuracy" in model.result_.verdict
    two = TunedClassifier(**QUICK).fit(X, X[:, 0] > 5.0)
    assert two.classes_.tolist() == [False, True]
    assert np.array_equal(two.decision_function(X) > 0, two.predict(X))


def test_numbers_are_in_the_units_of_the_target() -> None:
    model = TunedRegressor(**QUICK | {"inner_steps": 20}).fit(X, NUMBERS)
    assert model.score(X, NUMBERS) > 0.95
    assert abs(model.predict(X).mean() - NUMBERS.mean()) < 0.05 * NUMBERS.std()
    assert model.result_.table["r2"].max() > 0.9


def test_metric_is_in_the_units_of_the_target() -> None:
    def absolute_error(predictions: torch.Tensor, targets: torch.Tensor) -> float:
        return float((predictions - targets).abs().mean())

    absolute_error.higher_is_better = False  # type: ignore[attr-defined]
    own = TunedRegressor(**QUICK, metric=absolute_error).fit(X, NUMBERS).result_.table["absolute error"]
    named = TunedRegressor(**QUICK, metric="neg_mean_absolute_error").fit(X, NUMBERS).result_.table
    assert own[0] > 1.0  # the target deviates by 70, and a standardized error would be below 1
    assert np.allclose(own, -named["neg mean absolute error"])


def test_rows_of_weight_0_are_left_out() -> None:
    weights = np.where(np.arange(45) % 3 == 0, 0.0, 1.0 + np.arange(45) % 2)
    for kind, target in ((TunedClassifier, LABELS), (TunedRegressor, NUMBERS)):
        kept = weights > 0
        whole = kind(**QUICK).fit(X, target, sample_weight=weights)
        part = kind(**QUICK).fit(X[kept], target[kept], sample_weight=weights[kept])
        assert pd.DataFrame(whole.result_.table).equals(part.result_.table)
        assert all(
            torch.equal(a, b) for a, b in zip(whole.module_.parameters(), part.module_.parameters(), strict=True)
        )


def test_pairs_of_row_numbers_count_the_rows_that_are_left_out() -> None:
    weights, rows = np.ones(45), np.arange(45)
    weights[::5] = 0.0
    pairs = [(rows[rows % 3 != k], rows[rows % 3 == k]) for k in range(3)]
    left = np.flatnonzero(weights)
    place = np.cumsum(weights > 0) - 1
    inside = [tuple(place[part[weights[part] > 0]] for part in pair) for pair in pairs]
    whole = TunedClassifier(**QUICK | {"folds": pairs}).fit(X, LABELS, sample_weight=weights)
    part = TunedClassifier(**QUICK | {"folds": inside}).fit(X[left], LABELS[left])
    assert np.array_equal(whole.predict_proba(X), part.predict_proba(X))


@pytest.mark.parametrize("kind", [TunedClassifier, TunedRegressor])
def test_weights_move_the_model_towards_heavy_rows(kind: Any) -> None:
    x = np.linspace(-1, 1, 40).reshape(-1, 1)
    heavy = np.arange(40) % 2 == 0
    target = np.where(heavy, x[:, 0] > 0, x[:, 0] < 0).astype(float)  # the two halves contradict each other
    model = kind(**QUICK).fit(x, target, sample_weight=np.where(heavy, 5.0, 1.0))
    assert model.score(x[heavy], target[heavy]) > model.score(x[~heavy], target[~heavy]) + 0.3
    equal = kind(**QUICK).fit(
        x, target + 0.1 * heavy if kind is TunedRegressor else heavy, sample_weight=np.full(40, 7.0)
    )
    plain = kind(**QUICK).fit(x, target + 0.1 * heavy if kind is TunedRegressor else heavy)
    assert np.array_equal(equal.predict(x), plain.predict(x))


def test_the_metric_weighs_rows() -> None:
    weights = np.where(np.arange(45) % 2, 3.0, 1.0)
    ours = TunedClassifier(**QUICK).fit(X, LABELS, sample_weight=weights).result_.table
    theirs = TunedClassifier(**QUICK, metric="accuracy").fit(X, LABELS, sample_weight=weights).result_.table
    plain = TunedClassifier(**QUICK).fit(X, LABELS).result_.table
    assert np.allclose(ours["accuracy"], theirs["accuracy"])
    assert not np.allclose(ours["accuracy"], plain["accuracy"])


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def test_modules_and_factories() -> None:
    state = torch.get_rng_state()
    first, second = (TunedClassifier(mlp, **QUICK).fit(X, LABELS) for _ in range(2))
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert not np.array_equal(
        TunedClassifier(mlp, **QUICK | {"random_state": 1}).fit(X, LABELS).predict_proba(X), first.predict_proba(X)
    )
    assert torch.equal(state, torch.get_rng_state())
    own = mlp(3, 1)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    model = TunedRegressor(own, **QUICK).fit(X, NUMBERS)
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in before.items())
    assert model.predict(X).shape == (45,)
    flat = TunedRegressor(nn.Sequential(own, nn.Flatten(0)), **QUICK).fit(X, NUMBERS)
    assert np.allclose(flat.predict(X), model.predict(X), rtol=1e-4)


def test_linear_model_depends_on_no_seed() -> None:
    found = [TunedClassifier(**QUICK | {"random_state": seed}).fit(X, LABELS).predict_proba(X) for seed in (0, 1, None)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_frames_pipelines_clone_and_pickle() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = TunedClassifier(**QUICK).fit(frame, pd.Series(LABELS))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert again.result_.verdict == model.result_.verdict
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))
    assert clone(TunedClassifier(mlp, metric="f1_macro")).get_params()["metric"] == "f1_macro"
    pipeline = make_pipeline(MinMaxScaler(), TunedClassifier(**QUICK))
    assert cross_val_score(pipeline, frame, LABELS, cv=3, error_score="raise").mean() > 0.5


def test_settings_reach_tune() -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)  # it has no argument `reduction`
    given = QUICK | {"folds": KFold(4), "batch_size": 8, "inner": pt.Adam(lr=0.1), "loss": loss, "standardize": False}
    model = TunedClassifier(**given | {"metric": "roc_auc_ovr"}).fit(X[:, [0, 2]], LABELS)
    assert "roc auc ovr" in model.result_.table
    assert model.mean_.tolist() == [0.0, 0.0]


def test_constant_columns_and_few_rows() -> None:
    wide = np.hstack([X, np.full((45, 1), 7.0)])[:6]
    model = TunedClassifier(**QUICK | {"folds": 5}).fit(wide, ["a", "b"] * 3)
    assert model.scale_[3] == 1.0
    assert model.predict(wide).shape == (6,)
    rare = np.where(np.arange(45) == 7, "rare", LABELS)  # one row of a class
    assert "rare" in TunedClassifier(**QUICK | {"folds": 5}).fit(X, rare).classes_


def test_fit_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    TunedClassifier(**QUICK).fit(X, LABELS)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("given", [F.cross_entropy, nn.CrossEntropyLoss()], ids=["function", "module"])
def test_weighted_loss_is_the_loss_of_repeated_rows(given: Any) -> None:
    from pactune.sklearn.targets import TargetForm, loss_for

    scores, labels = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 2])
    weights = np.array([1.0, 3.0, 2.0, 1.0])
    form = TargetForm(classes=True, weighted=True)
    targets = form.write(labels.numpy(), weights, scores)
    repeated = torch.as_tensor(weights).long()
    wanted = F.cross_entropy(scores.repeat_interleave(repeated, 0), labels.repeat_interleave(repeated))
    loss = loss_for(given, form)
    assert torch.allclose(loss(scores, targets), wanted)
    assert torch.allclose(loss(scores, targets, reduction="none").sum() / 7, wanted)
