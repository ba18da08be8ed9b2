"""`pactune certify`: numbers with what they rest on, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pactune import bounds
from pactune.cli.app import app
from pactune.errors import CertificateError, DataError, SettingError


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["certify", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def test_counts() -> None:
    document = json.loads(run("hold-out", "--errors", "110", "--rows", "1000", "--fresh", "--format", "json"))
    assert document["value"] == pytest.approx(bounds.hold_out(0.11, 1000, 0.05))
    assert any("as was stated" in words for words in document["assumptions"])


def test_counts_without_the_statement_are_refused() -> None:
    with pytest.raises(CertificateError, match="fresh sample"):
        run("hold-out", "--errors", "1", "--rows", "10")
    with pytest.raises(SettingError, match="--errors"):
        run("hold-out", "--errors", "11", "--rows", "10", "--fresh")


def test_chains_on_the_digits() -> None:
    text = run("train", "--models", "2", "--steps", "30")
    assert "mode train side" in text
    assert "which holds if" in text


def test_a_file_of_your_own(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 120)
    x = generator.normal(size=(120, 3)) + 2 * y[:, None]
    np.savez(tmp_path / "data.npz", x_train=x[:60], y_train=y[:60], x_valid=x[60:], y_valid=y[60:])
    options = ["--models", "2", "--steps", "10", "--format", "json"]
    for command in (["train", "--posterior", "train", "--loss", "cross-entropy"], ["validation", "--outer-steps", "2"]):
        document = json.loads(run(command[0], str(tmp_path / "data.npz"), *command[1:], *options))
        assert document["empirical"] <= document["value"]
        assert document["n"] == 60
    hidden = json.loads(run("train", str(tmp_path / "data.npz"), "--hidden", "4", *options))
    assert hidden["models"] == 2
    np.savez(tmp_path / "less.npz", x_train=x)
    with pytest.raises(DataError, match="it lacks y_train"):
        run("train", str(tmp_path / "less.npz"))
    with pytest.raises(SettingError, match=r"there is no file nowhere\.npz"):
        run("train", "nowhere.npz")


def test_the_same_rows_twice_are_refused(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2
    np.savez(tmp_path / "same.npz", x_train=x, y_train=y, x_valid=x, y_valid=y)
    with pytest.raises(CertificateError, match="disjoint samples: training and validation sample share 30 rows"):
        run("train", str(tmp_path / "same.npz"))
