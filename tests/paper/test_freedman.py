"""The data of Freedman's paradox, and the parts of its study that hold no randomness of their own."""

import json

import numpy as np
import pytest

from pactune.paper.freedman.data import freedman_data, held_out_error
from pactune.paper.intervals import mean_interval, share_interval
from pactune.tracking.run_folder import RunFolder


def test_signal_and_variance():
    data = freedman_data(0, test_rows=200_000, features=4)
    # Covariance of x_1 and y is 1/√6; its standard error over 200,000 rows is 0.0024.
    assert np.mean(data.test[:, 0] * data.test_target) == pytest.approx(1 / np.sqrt(6), abs=0.01)
    assert data.test_target.var() == pytest.approx(1.0, abs=0.01)
    assert len(data.train) == len(data.valid) == 250


def test_null_test_labels_are_noise():
    data = freedman_data(0, null=True, test_rows=200_000, features=4)
    correlations = data.test.T @ data.test_target / len(data.test)
    assert np.abs(correlations).max() < 0.01


def test_held_out_error_of_the_true_model_is_the_noise():
    data = freedman_data(1, test_rows=20_000)
    assert held_out_error(data, [0, 1], refit=True) == pytest.approx(2 / 3, abs=0.03)
    assert held_out_error(data, [], refit=True) == pytest.approx(1.0, abs=0.05)


def test_intervals():
    assert mean_interval([3.0]) == {"mean": 3.0, "low": 3.0, "high": 3.0}
    found = mean_interval([1.0, 2.0, 3.0])
    assert found["high"] == pytest.approx(2.0 + 4.302653 / np.sqrt(3), rel=1e-6)
    assert share_interval(20, 20)["low"] == pytest.approx(0.8389, abs=1e-4)


def test_journal_goes_on_and_keeps_a_failure(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.run("one", {"seed": 0}):
        folder.append("row", value=1)
    with pytest.raises(RuntimeError, match="broken"), folder.run("two", {}):
        raise RuntimeError("broken")
    rows = [json.loads(line) for line in folder.journal.read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["start", "row", "end", "start", "end"]
    assert rows[-1]["status"] == "failed"
    assert "broken" in rows[-1]["error"]
