"""The scikit-learn estimator: its contract, its settings, and what it finds."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from pactune.errors import DataError, SettingError
from pactune.selection import ForwardSelector, StepSizeWarning

CRITERIA = ["pac-bayes", "validation", "aic", "ebic"]


@parametrize_with_checks(
    [ForwardSelector(criterion=criterion, random_state=0) for criterion in CRITERIA]
    + [ForwardSelector(criterion="pac-bayes", method="monte-carlo", chains=5, random_state=0)]
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No features were selected")
        check(estimator)


def two_true(seed=0, rows=300, features=60):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features))
    return X, X[:, 0] - X[:, 1] + 1.5 * rng.normal(size=rows)


def test_default_is_the_criterion_that_predicts_best():
    assert ForwardSelector().criterion == "ebic"


@pytest.mark.parametrize("load", [load_diabetes, load_wine, load_breast_cancer])
def test_default_chooses_the_same_features_with_every_seed(load):
    X, y = load(return_X_y=True)
    paths = [ForwardSelector(random_state=seed).fit(X, y).path_ for seed in range(5)]
    for path in paths[1:]:
        pd.testing.assert_frame_equal(path, paths[0], check_exact=True)


def test_default_chooses_the_same_of_two_columns_that_differ_in_their_unit_with_every_seed():
    rng = np.random.default_rng(0)
    metres = rng.normal(size=(101, 1))
    X = np.hstack([metres, metres / 0.3048, metres * 39.37 + 3])
    y = metres[:, 0] + rng.normal(size=101)
    assert len({tuple(ForwardSelector(random_state=seed).fit(X, y).order_) for seed in range(20)}) == 1


def test_default_keeps_what_diabetes_needs():
    X, y = load_diabetes(return_X_y=True)
    assert sorted(ForwardSelector().fit(X, y).order_) == [1, 2, 3, 4, 5, 8]


def test_few_rows_and_many_columns_of_noise_give_nothing():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert ForwardSelector().fit(rng.normal(size=(30, 300)), rng.normal(size=30)).n_features_ == 0


def test_nothing_is_added_to_a_perfect_fit():
    for seed in range(20):
        X = np.random.default_rng(seed).normal(size=(10, 4))
        assert list(ForwardSelector().fit(X, 2 * X[:, 0]).order_) == [0]


def test_path_without_a_length_goes_ten_steps_past_its_minimum():
    X, y = two_true()
    selector = ForwardSelector().fit(X, y)
    assert list(selector.path_["step"]) == list(range(selector.n_features_ + 11))
    assert len(ForwardSelector(max_features=30).fit(X, y).path_) == 31
    assert ForwardSelector(min_features=25).fit(X, y).n_features_ == 25


@pytest.mark.parametrize("criterion", ["pac-bayes", "ebic"])
def test_finds_the_true_features_and_stops(criterion):
    X, y = two_true()
    selector = ForwardSelector(criterion=criterion, random_state=0).fit(X, y)
    assert sorted(selector.order_) == [0, 1]
    assert selector.n_features_ == 2
    assert list(np.flatnonzero(selector.support_)) == [0, 1]


def test_validation_risk_alone_goes_on():
    X, y = two_true()
    assert ForwardSelector(criterion="validation", random_state=0).fit(X, y).n_features_ > 5


@pytest.mark.parametrize("criterion", ["pac-bayes", "ebic"])
def test_selects_nothing_from_noise(criterion):
    X, _ = two_true()
    y = np.random.default_rng(1).normal(size=len(X))
    assert ForwardSelector(criterion=criterion, random_state=0).fit(X, y).n_features_ == 0


def test_path_table_names_features_and_adds_up():
    X, y = two_true()
    frame = pd.DataFrame(X, columns=[f"column {place}" for place in range(X.shape[1])])
    selector = ForwardSelector(criterion="pac-bayes", max_features=5, random_state=0).fit(frame, y)
    path = selector.path_
    assert list(path.columns) == ["step", "feature", "objective", "risk", "regularizer", "validation_r2"]
    assert list(path["step"]) == [0, 1, 2, 3, 4, 5]
    assert path["feature"][0] is None
    assert set(path["feature"][1:3]) == {"column 0", "column 1"}
    np.testing.assert_allclose(path["objective"], path["risk"] + path["regularizer"])
    assert list(selector.get_feature_names_out()) == ["column 0", "column 1"]


@settings(max_examples=15, deadline=None)
@given(
    scale=st.floats(1e-4, 1e4), shift=st.floats(-1e3, 1e3), target_scale=st.floats(1e-4, 1e4), column=st.integers(0, 11)
)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_units_do_not_matter(criterion, scale, shift, target_scale, column):
    X, y = two_true(rows=80, features=12)
    other = X.copy()
    other[:, column] = scale * (X[:, column] + shift)
    selector = ForwardSelector(criterion=criterion, max_features=4, random_state=0)
    expected = selector.fit(X, y).path_
    found = selector.fit(other, target_scale * y - shift).path_
    assert list(found["feature"]) == list(expected["feature"])
    np.testing.assert_allclose(found["objective"], expected["objective"], rtol=1e-5, atol=1e-9)


def test_explicit_validation_rows_replace_the_split():
    X, y = two_true()
    given = ForwardSelector(criterion="pac-bayes").fit(X[:150], y[:150], X[150:], y[150:])
    again = ForwardSelector(criterion="pac-bayes", random_state=5).fit(
        X[:150], y[:150], X_valid=X[150:], y_valid=y[150:]
    )
    pd.testing.assert_frame_equal(given.path_, again.path_)
    with pytest.raises(SettingError, match="X_valid"):
        ForwardSelector().fit(X, y, X_valid=X)


def test_a_number_of_features_is_obeyed():
    X, y = two_true()
    assert ForwardSelector(n_features_to_select=7, random_state=0).fit(X, y).support_.sum() == 7
    assert ForwardSelector(n_features_to_select=0, random_state=0).fit(X, y).support_.sum() == 0
    with pytest.raises(SettingError, match="n_features_to_select"):
        ForwardSelector(n_features_to_select=61, random_state=0).fit(X, y)


def test_fewer_usable_columns_than_asked_for():
    X, y = two_true(features=4)
    X[:, 3] = 1.0
    with pytest.raises(DataError, match="constant"):
        ForwardSelector(n_features_to_select=4, random_state=0).fit(X, y)


def test_min_features_keeps_a_pipeline_alive():
    X, _ = two_true(features=10)
    y = np.random.default_rng(3).normal(size=len(X))
    pipeline = make_pipeline(ForwardSelector(min_features=1, random_state=0), LinearRegression())
    assert pipeline.fit(X, y).predict(X).shape == y.shape


def test_works_in_a_grid_search():
    X, y = two_true(features=15)
    pipeline = make_pipeline(ForwardSelector(min_features=1, random_state=0), LinearRegression())
    grid = {"forwardselector__criterion": ["pac-bayes", "validation"], "forwardselector__beta": [0.1, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_estimator_[0].support_[:2].all()


def test_monte_carlo_chooses_as_the_exact_objective_where_the_signal_is_clear():
    X, y = two_true()
    settings = {"criterion": "pac-bayes", "max_features": 4, "random_state": 0}
    sampled = ForwardSelector(method="monte-carlo", **settings).fit(X, y)
    exact = ForwardSelector(**settings).fit(X, y)
    assert sorted(sampled.order_) == sorted(exact.order_) == [0, 1]
    # 50 chains; the standard deviation of one chain's risk is near 0.2 with two features, so 4 errors are 0.11.
    assert sampled.path_["objective"][2] == pytest.approx(exact.path_["objective"][2], abs=0.11)


@pytest.mark.parametrize("labels", [["no", "yes"], ["low", "middle", "high"]])
def test_classification_by_the_least_squares_score(labels):
    X, y = two_true(rows=400, features=30)
    edges = np.quantile(y, np.linspace(0, 1, len(labels) + 1)[1:-1])
    classes = np.array(labels)[np.digitize(y, edges)]
    selector = ForwardSelector(random_state=0).fit(X, classes)
    assert sorted(selector.order_) == [0, 1]


def test_integer_classes_need_the_task():
    X, y = two_true(rows=400, features=30)
    cyclic = np.array([1, 0, 2])[np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))]  # not monotone: no line fits it
    assert ForwardSelector(task="regression", random_state=0).fit(X, cyclic).n_features_ < 2
    assert sorted(ForwardSelector(task="classification", random_state=0).fit(X, cyclic).order_) == [0, 1]


def test_two_integer_classes_are_the_same_as_numbers():
    X, y = two_true(rows=400, features=30)
    binary = (y > 0).astype(int)
    as_numbers = ForwardSelector(task="regression").fit(X[:200], binary[:200], X[200:], binary[200:])
    as_classes = ForwardSelector(task="classification").fit(X[:200], binary[:200], X[200:], binary[200:])
    np.testing.assert_allclose(as_numbers.path_["objective"], as_classes.path_["objective"], rtol=1e-9)


def test_step_size_is_reduced_on_correlated_columns_and_says_so():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 1)) + 1e-3 * rng.normal(size=(100, 30))
    y = X[:, 0] + rng.normal(size=100)
    with pytest.warns(StepSizeWarning, match="learning_rate"):
        selector = ForwardSelector(criterion="pac-bayes", learning_rate=0.5, random_state=0).fit(X, y)
    assert selector.learning_rate_ * 20 < 2.0
    assert selector.learning_rate_ * selector.steps_ == pytest.approx(0.5 * 50)
    assert np.isfinite(selector.path_["objective"]).all()
    assert selector.path_["objective"].max() < 100.0


@pytest.mark.parametrize("beta", [0.1, "auto"])
@pytest.mark.parametrize("method", ["exact", "monte-carlo"])
def test_exact_copies_of_a_column_are_no_trouble(beta, method):
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(60, 1)), 25, axis=1)
    y = X[:, 0] + 0.5 * rng.normal(size=60)
    with pytest.warns(StepSizeWarning):
        selector = ForwardSelector(
            criterion="pac-bayes", beta=beta, method=method, max_features=20, random_state=0
        ).fit(X, y)
    assert selector.n_features_ >= 1
    assert np.isfinite(selector.path_["objective"]).all()


def test_step_size_stays_where_it_is_stable():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3000))  # λ_max of all columns together is above 40, of any twenty of them below 4
    selector = ForwardSelector(criterion="pac-bayes", random_state=0).fit(X, X[:, 0] + rng.normal(size=100))
    assert (selector.learning_rate_, selector.steps_) == (0.1, 50)
    assert selector.zeta_**2 == pytest.approx(0.1 * 0.1 / 4)


def test_infinite_beta_needs_a_number_for_zeta():
    X, y = two_true()
    with pytest.raises(SettingError, match="zeta"):
        ForwardSelector(criterion="pac-bayes", beta=np.inf).fit(X, y)
    assert ForwardSelector(criterion="pac-bayes", beta=np.inf, zeta=0.0, random_state=0).fit(X, y).n_features_ > 2


@pytest.mark.parametrize(
    "setting", [{"criterion": "bic"}, {"beta": 0.0}, {"beta": "theory"}, {"validation_fraction": 1.0}, {"steps": 0}]
)
def test_wrong_settings_are_refused(setting):
    X, y = two_true()
    with pytest.raises(ValueError, match=next(iter(setting))):
        ForwardSelector(**setting).fit(X, y)


def test_too_few_rows_and_labels_for_regression():
    with pytest.raises(DataError, match="n_samples = 2"):
        ForwardSelector().fit([[1.0], [2.0]], [1.0, 2.0])
    with pytest.raises(DataError, match="classification"):
        ForwardSelector(task="regression").fit([[1.0], [2.0], [4.0], [3.0]], ["a", "b", "a", "b"])


def test_not_fitted():
    with pytest.raises(NotFittedError):
        ForwardSelector().get_support()
