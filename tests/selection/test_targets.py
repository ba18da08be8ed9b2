"""How a target becomes columns of numbers."""

import numpy as np
import pytest

import pactune as pt
from pactune.selection import ForwardSelector
from pactune.selection.targets import target_columns


def test_one_class_is_refused():
    with pytest.raises(pt.DataError, match="at least two classes"):
        target_columns(np.array(["a", "a", "a"]), task="auto")
    with pytest.raises(pt.DataError, match="at least two classes"):
        ForwardSelector(task="classification").fit(
            np.random.default_rng(0).normal(size=(12, 3)), np.ones(12, dtype=int)
        )


@pytest.mark.parametrize("y", [np.linspace(0.0, 1.0, 12), np.arange(12), np.arange(12).astype(str)])
def test_a_target_without_classes_is_refused(y):
    with pytest.raises(pt.DataError, match="12 different values in 12 rows, too many for classes"):
        ForwardSelector(task="classification").fit(np.random.default_rng(0).normal(size=(12, 3)), y)


def test_two_numbers_with_fractions_are_two_classes():
    _, index = target_columns(np.array([0.5, 1.5, 0.5]), task="classification")
    np.testing.assert_array_equal(index, [0, 1, 0])


def test_two_classes_become_one_column_of_signs():
    columns, index = target_columns(np.array(["b", "a", "b"]), task="auto")
    np.testing.assert_array_equal(columns, [[1.0], [-1.0], [1.0]])
    np.testing.assert_array_equal(index, [1, 0, 1])


def test_three_classes_become_three_columns():
    columns, index = target_columns(np.array([2, 0, 1, 2, 0, 1]), task="classification")
    np.testing.assert_array_equal(columns, 2 * [[0, 0, 1], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(index, [2, 0, 1, 2, 0, 1])


@pytest.mark.parametrize("task", ["auto", "regression"])
def test_numbers_stay_numbers(task):
    columns, index = target_columns(np.array([2, 0, 1]), task=task)
    np.testing.assert_array_equal(columns, [[2.0], [0.0], [1.0]])
    assert index is None


def test_labels_are_no_numbers():
    with pytest.raises(pt.DataError, match="must hold numbers"):
        target_columns(np.array(["a", "b"]), task="regression")
