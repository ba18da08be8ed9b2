"""What the paper's selector must show on Freedman's problem, on data seeds 0 to 19 as the full reproduction draws them.

The paper says that Eq. 5 selects exactly the true features. Measured here: 18 of these 20 seeds with two true
predictors (one true feature is missed in seeds 8 and 13), none selected in any null seed. Paths are cut at six features
to save time; the full reproduction goes to twenty and finds the same.
"""

import pytest

from pactune.paper.freedman.data import freedman_data, held_out_error
from pactune.selection import ForwardSelector

SEEDS = range(20)


def chosen(data, *, criterion="pac-bayes", max_features=6, **settings):
    selector = ForwardSelector(criterion=criterion, max_features=max_features, **settings)
    return selector.fit(data.train, data.train_target, data.valid, data.valid_target).order_.tolist()


@pytest.fixture(scope="module")
def two_true():
    return [freedman_data(seed, test_rows=2000) for seed in SEEDS]


def test_two_true_predictors(two_true):
    selections = [chosen(data) for data in two_true]
    assert sum(sorted(features) == [0, 1] for features in selections) >= 18
    assert all(set(features) <= {0, 1} and features for features in selections)


def test_better_on_new_rows_than_the_validation_risk(two_true):
    """Better on all seeds but the two on which a true feature is missed, and clearly so."""
    wins = 0
    for data in two_true:
        ours, plain = chosen(data), chosen(data, criterion="validation", max_features=20)
        assert len(plain) > 10
        wins += held_out_error(data, ours, refit=True) < held_out_error(data, plain, refit=True) - 0.05
    assert wins >= 18


def test_noise_alone_is_exactly_right_on_every_seed(two_true):
    """The ablation's finding: at β = 0.1 the Langevin noise does the work, and the regularizer costs two seeds."""
    assert all(sorted(chosen(data, zeta=0.0)) == [0, 1] for data in two_true)


def test_null_selects_nothing():
    assert all(chosen(freedman_data(seed, null=True, test_rows=10)) == [] for seed in SEEDS)
