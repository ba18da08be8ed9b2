"""Every criterion against the obvious computation, feature by feature."""

import math

import numpy as np
import pytest

from pactune.selection.forward import best_size, forward_path
from pactune.selection.least_squares import Akaike, ExtendedBayes, ValidationScore
from pactune.selection.moments import LangevinPath
from pactune.selection.pac_bayes import PathScore
from pactune.selection.rows import pool, second_moments, standardize
from tests.selection.iterated_moments import iterated_moments

CHOSEN = [4, 1]


@pytest.fixture(params=[1, 3], ids=["one output", "three outputs"])
def rows(request):
    rng = np.random.default_rng(5)
    columns = rng.normal(size=(50, 9)) + rng.normal(size=(50, 1))
    columns[:, 6] = 3.0
    targets = columns[:, [1]] + rng.normal(size=(50, request.param))
    return standardize(columns[:30], targets[:30], columns[30:], targets[30:])


def least_squares_risks(rows, subset):
    coefficients = np.linalg.lstsq(rows.train[:, subset], rows.train_target, rcond=None)[0]
    return np.mean((rows.valid_target - rows.valid[:, subset] @ coefficients) ** 2, axis=0)


def obvious_validation(rows, subset):
    return least_squares_risks(rows, subset).sum()


def obvious_aic(rows, subset):
    parameters = len(subset) * rows.train_target.shape[1]
    return 2 * parameters + len(rows.valid) * least_squares_risks(rows, subset).sum()


def obvious_ebic(rows, subset):
    everything = pool(rows)
    count, outputs = everything.train_target.shape
    fit = count * np.log(least_squares_risks(everything, subset)).sum()
    models = math.comb(everything.train.shape[1], len(subset))
    penalty = outputs * len(subset) * math.log(count) + 2 * math.log(models)
    return fit + penalty * count / (count - len(subset) - 2)


def obvious_pac_bayes(rows, subset):
    found = iterated_moments(second_moments(rows, subset), LangevinPath(inverse_temperature=3.0))
    return found.risk + 0.1 * math.sqrt(found.incoherence)


# One row per criterion: a new one joins by adding itself and its obvious computation.
CRITERIA = [
    (ValidationScore(), obvious_validation),
    (Akaike(), obvious_aic),
    (ExtendedBayes(), obvious_ebic),
    (PathScore(zeta=0.1, path=LangevinPath(inverse_temperature=3.0)), obvious_pac_bayes),
]
NAMES = [type(criterion).__name__ for criterion, _ in CRITERIA]


@pytest.mark.parametrize(("criterion", "obvious"), CRITERIA, ids=NAMES)
def test_scores_equal_the_obvious_computation(rows, criterion, obvious):
    state = criterion.start(rows)
    for feature in CHOSEN:
        state = criterion.extend(state, feature)
    found = criterion.scores(state).objective
    for feature in range(9):
        if feature in (*CHOSEN, 6):
            assert found[feature] == np.inf  # chosen already, or constant
        else:
            assert found[feature] == pytest.approx(obvious(rows, [*CHOSEN, feature]), rel=1e-9)


@pytest.mark.parametrize(("criterion", "obvious"), CRITERIA, ids=NAMES)
def test_path_starts_at_the_empty_model_and_is_greedy(rows, criterion, obvious):
    path = forward_path(rows, criterion, max_features=3)
    first = min((feature for feature in range(9) if feature != 6), key=lambda feature: obvious(rows, [feature]))
    assert path[0].feature is None
    assert path[0].regularizer == 0.0
    assert path[1].feature == first
    assert path[1].objective == pytest.approx(obvious(rows, [first]), rel=1e-9)
    assert len({step.feature for step in path}) == 4


@pytest.mark.parametrize(("criterion", "obvious"), CRITERIA, ids=NAMES)
def test_path_ends_when_no_usable_feature_is_left(rows, criterion, obvious):
    path = forward_path(rows, criterion, max_features=9)
    assert [step.feature for step in path].count(6) == 0
    assert len(path) == 9


def test_collinear_columns_are_not_added_by_least_squares():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(40, 3))
    columns[:, 2] = columns[:, 0] - 2 * columns[:, 1]
    target = columns[:, :1] + rng.normal(size=(40, 1))
    rows = standardize(columns[:20], target[:20], columns[20:], target[20:])
    assert len(forward_path(rows, ValidationScore(), max_features=3)) == 3


def test_ebic_does_not_reward_the_perfect_fit_of_many_columns_to_few_rows():
    rng = np.random.default_rng(0)
    columns, target = rng.normal(size=(20, 50)), rng.normal(size=(20, 1))
    rows = standardize(columns[:10], target[:10], columns[10:], target[10:])
    path = forward_path(rows, ExtendedBayes(), max_features=50)
    assert len(path) == 1 + 20 - 3  # a model of n − 2 features has no finite criterion
    assert best_size(path) == 0


def test_patience_ends_the_path_after_its_minimum(rows):
    whole = forward_path(rows, ExtendedBayes(), max_features=8)
    best = best_size(whole)
    assert best <= 4
    short = forward_path(rows, ExtendedBayes(), max_features=8, patience=2)
    assert short == whole[: best + 3]


def test_monte_carlo_path_repeats_with_its_seed(rows):
    def chosen(seed):
        criterion = PathScore(zeta=0.1, path=LangevinPath(inverse_temperature=3.0), chains=10, seed=seed)
        return forward_path(rows, criterion, max_features=4)

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


def test_best_size_prefers_the_smaller_model_and_respects_the_minimum(rows):
    path = forward_path(rows, ValidationScore(), max_features=3)
    flat = [step._replace(objective=1.0) for step in path]
    assert best_size(flat) == 0
    assert best_size(flat, min_features=2) == 2
