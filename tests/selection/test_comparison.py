"""The cross-validated comparison of chosen features with all features."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pactune.errors import DataError, SettingError
from pactune.selection import ForwardSelector
from pactune.selection.comparison import compare_with_all


@pytest.fixture
def numbers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 30))
    return X, X[:, 0] - X[:, 1] + rng.normal(size=80)


def test_all_features_have_the_score_of_scikit_learn(numbers):
    X, y = numbers
    found = compare_with_all(ForwardSelector(), X, y, task="regression", repeats=1)
    model = make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-3, 3, 13)))
    guess = cross_val_predict(model, X, y, cv=KFold(5, shuffle=True, random_state=0))
    assert found.metric == "R²"
    assert found.all_features.features == 30
    assert found.all_features.score == pytest.approx(r2_score(y, guess), rel=1e-9)


def test_chosen_features_are_those_of_a_pipeline_that_selects_in_each_fold(numbers):
    X, y = numbers
    labels = np.where(y > 0, "up", "down")
    selector = ForwardSelector(min_features=1)
    found = compare_with_all(selector, X, labels, task="classification", repeats=2)
    model = make_pipeline(selector, StandardScaler(), LogisticRegression(max_iter=1000))
    folds = [StratifiedKFold(5, shuffle=True, random_state=seed) for seed in (0, 1)]
    expected = [accuracy_score(labels, cross_val_predict(model, X, labels, cv=cv)) for cv in folds]
    assert found.metric == "accuracy"
    assert found.chosen.per_repeat == pytest.approx(expected)
    assert found.chosen.score == pytest.approx(np.mean(expected))
    assert 1 <= found.chosen.features < 30


def test_nothing_chosen_predicts_the_mean_and_no_better():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), rng.normal(size=60)
    found = compare_with_all(ForwardSelector(n_features_to_select=0), X, y, task="regression")
    assert found.chosen.features == 0
    assert -0.1 < found.chosen.score <= 0


def test_a_class_of_one_row_is_no_trouble():
    X = np.arange(20.0).reshape(10, 2) ** 1.5
    y = np.array(["a"] * 9 + ["b"])
    found = compare_with_all(ForwardSelector(), X, y, task="classification", repeats=2)
    assert 0.8 <= found.all_features.score <= 0.9  # the only "b" is never among its own training rows


def test_wrong_use_is_refused(numbers):
    X, y = numbers
    with pytest.raises(SettingError, match="task"):
        compare_with_all(ForwardSelector(), X, y, task="auto")
    with pytest.raises(SettingError, match="repeats"):
        compare_with_all(ForwardSelector(), X, y, task="regression", repeats=0)
    with pytest.raises(DataError, match="at least 5 rows"):
        compare_with_all(ForwardSelector(), X[:4], y[:4], task="regression")
