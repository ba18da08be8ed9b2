"""Wrong inputs to `pactune tune`, `pactune predict` and the estimators: one clear sentence each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from torch import nn

from pactune.errors import PactuneError
from pactune.sklearn import TunedClassifier, TunedRegressor
from tests.cli.tables import run_pactune, small_table, train_quickly, write

Write = Callable[[Path], Any]
TUNE = "tune data.csv --target kind --output new"
PREDICT = "predict model data.csv"


class Case(NamedTuple):
    """A command in a folder in which `write` has made its files, and words of the sentence that it ends with."""

    command: str
    message: str
    write: Write = lambda folder: write(folder, small_table())


def changed(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Write:
    return lambda folder: write(folder, change(small_table()))


def content(text: bytes) -> Write:
    return lambda folder: (folder / "data.csv").write_bytes(text)


def document(**changes: Any) -> Write:
    """Change fields of the document of the trained model."""

    def make(folder: Path) -> None:
        write(folder, small_table())
        place = folder / "model" / "table.json"
        place.write_text(json.dumps(json.loads(place.read_text()) | changes))

    return make


def damaged(name: str, text: str | None) -> Write:
    """Replace the content of a file of the trained model; None removes it."""

    def make(folder: Path) -> None:
        write(folder, small_table())
        for path in (folder / "model").glob(name):
            path.unlink() if text is None else path.write_text(text)

    return make


COMMANDS = {
    # tune
    "no file": Case("tune none.csv --target kind --output new", "there is no file none.csv"),
    "another file": Case(
        "tune data.txt --target kind --output new",
        "must be a .csv or .parquet file, got data.txt",
        lambda folder: (folder / "data.txt").write_text("a"),
    ),
    "empty file": Case(TUNE, "cannot read data.csv: No columns", content(b"")),
    "no text": Case(TUNE, "cannot read data.csv", content(b"\xff\xfe\x00a,kind\n\x80\x81")),
    "header alone": Case(TUNE, "at least 10 rows .* got 0", changed(lambda frame: frame.head(0))),
    "few rows": Case(TUNE, "at least 10 rows .* got 9", changed(lambda frame: frame.head(9))),
    "few targets": Case(
        TUNE, "got 3 with a target out of 60", changed(lambda frame: frame.assign(kind=frame["kind"].head(3)))
    ),
    "no targets": Case(TUNE, "target 'kind' has no value in any of 60", changed(lambda frame: frame.assign(kind=None))),
    "unknown target": Case("tune data.csv --target Knd --output new", "no column named 'Knd'; did you mean 'kind'?"),
    "wrong delimiter": Case(
        TUNE,
        "its names are joined by ';': use --delimiter ';'",
        lambda folder: small_table().to_csv(folder / "data.csv", sep=";"),
    ),
    "long delimiter": Case(f"{TUNE} --delimiter ab", "must be one character or 'tab'"),
    "one class": Case(TUNE, "target 'kind' is constant", changed(lambda frame: frame.assign(kind="dear"))),
    "constant number": Case(
        "tune data.csv --target price --output new", "is constant", changed(lambda frame: frame.assign(price=1.5))
    ),
    "labels in a regression": Case(f"{TUNE} --task regression", "must hold numbers for regression, got labels"),
    "numbers as classes": Case(
        "tune data.csv --target price --output new --task classification", "too many for classes"
    ),
    "infinite target": Case(
        "tune data.csv --target price --output new",
        "infinite",
        changed(
            lambda frame: frame.assign(price=np.inf).assign(price=frame["price"].replace(frame["price"][0], np.inf))
        ),
    ),
    "empty column": Case(TUNE, "no value in column 'gap'; use --drop", changed(lambda frame: frame.assign(gap=None))),
    "infinite column": Case(
        TUNE,
        "infinite values in column 'age'",
        changed(lambda frame: frame.assign(age=frame["age"].replace(frame["age"][0], np.inf))),
    ),
    "target alone": Case(TUNE, "no column is left besides", changed(lambda frame: frame[["kind"]])),
    "useless columns": Case(
        TUNE, "no column is left to predict by", changed(lambda frame: frame[["kind", "id", "unit"]])
    ),
    "unknown drop": Case(f"{TUNE} --drop towm", "did you mean 'town'?"),
    "target dropped": Case(f"{TUNE} --drop kind", "cannot be dropped"),
    "metric with a slip": Case(f"{TUNE} --metric acuracy", "got 'acuracy'; did you mean 'accuracy'?"),
    "unknown metric": Case(f"{TUNE} --metric speed", "`metric` must be the name of a scikit-learn scorer, got 'speed'"),
    "metric of classes": Case(
        "tune data.csv --target price --output new --metric accuracy",
        "`metric` must score numbers, because the task is regression, got 'accuracy'; use for instance 'r2'",
    ),
    "metric of numbers": Case(
        f"{TUNE} --metric r2",
        "`metric` must score classes, because the task is classification, got 'r2'; use for instance 'accuracy'",
    ),
    "two folds": Case(f"{TUNE} --folds 2", "Invalid value for '--folds'"),
    "unknown model": Case(f"{TUNE} --model forest", "'forest' is not one of"),
    "output with files": Case("tune data.csv --target kind --output model", "must be a new or empty folder"),
    "output is a file": Case("tune data.csv --target kind --output data.csv", "`--output` must be a folder"),
    "no target option": Case("tune data.csv --output new", "Missing option '--target'"),
    # predict
    "no folder": Case("predict none data.csv", "there is no folder none"),
    "folder without a model": Case("predict . data.csv", "holds no model of `pactune tune`"),
    "no new file": Case("predict model none.csv", "there is no file none.csv"),
    "no new rows": Case(PREDICT, "data.csv has no rows", changed(lambda frame: frame.head(0))),
    "one column missing": Case(
        PREDICT,
        "no column named 'town'; did you mean 'twon'?",
        changed(lambda frame: frame.rename(columns={"town": "twon"})),
    ),
    "columns missing": Case(
        PREDICT, "no columns named 'age', 'town'; the table has 'member'", changed(lambda frame: frame[["member"]])
    ),
    "text among numbers": Case(
        PREDICT, "column 'age' must hold numbers, got 'old'", changed(lambda frame: frame.assign(age="old"))
    ),
    "new delimiter": Case(
        PREDICT,
        "no columns named 'age', 'town', 'member'; .* its names are joined by ';': use --delimiter ';'",
        lambda folder: small_table().to_csv(folder / "data.csv", sep=";"),
    ),
    "output below a file": Case(f"{PREDICT} --output data.csv/out.csv", "`--output` must be a file that can be"),
    "corrupt document": Case(PREDICT, "table.json is damaged", damaged("table.json", '{"kind": ')),
    "document of another kind": Case(PREDICT, "table.json.kind must be", document(kind="pactune result")),
    "document of another format": Case(PREDICT, "its format is 99", document(format=99)),
    "columns that are none": Case(PREDICT, "table.json.numbers must be a list", document(numbers="all")),
    "classes of a regression": Case(PREDICT, "a regression has none", document(task="regression")),
    "unknown kind of model": Case(PREDICT, "model must be linear or mlp", document(model="os.system")),
    "sizes that differ": Case(PREDICT, "the weights in model.model cannot be read", document(categories=[])),
    "no weights": Case(PREDICT, "the weights in model.model cannot be read", damaged("model/*.safetensors", None)),
    "corrupt weights": Case(PREDICT, "the weights in model.model cannot be read", damaged("model/*.safetensors", "x")),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a trained model."""
    from pactune.cli.training_table import prepare_table
    from pactune.cli.tune import _fit

    with pytest.MonkeyPatch.context() as patch:
        train_quickly(patch)
        found, result = _fit(prepare_table(small_table(), "kind", ["price"], "auto"), "linear", {"folds": 3})
    folder = tmp_path_factory.mktemp("trained")
    found.save(folder, result)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_commands_end_with_one_sentence(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    case = COMMANDS[name]
    shutil.copytree(model, tmp_path / "model")
    case.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    train_quickly(monkeypatch)
    status, out, err = run_pactune(monkeypatch, capfd, *case.command.split())
    lines = [line for line in err.splitlines() if not line.startswith(("tune: ", "predict: "))]
    words = re.sub(r"[\s│]+", " ", " ".join(lines))  # wrong options come in a box
    assert (status, out) == (2, ""), words
    assert re.search(case.message, words), words
    assert "Traceback" not in words
    assert len(lines) == 1 or "Usage" in words, words
    assert not (tmp_path / "new").exists()


X = np.random.default_rng(0).standard_normal((12, 2))
Y, N = np.arange(12) % 2, X[:, 0]


def linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs)


ESTIMATORS: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "few rows": (TunedClassifier(), lambda e: e.fit(X[:5], Y[:5]), "at least 6 rows.* got n_samples = 5"),
    "one class": (TunedClassifier(), lambda e: e.fit(X, Y * 0), "at least two classes in `y`, got 1 class"),
    "numbers as classes": (TunedClassifier(), lambda e: e.fit(X, N), "Unknown label type: continuous"),
    "constant target": (TunedRegressor(), lambda e: e.fit(X, N * 0 + 2), r"`y` is constant \(2\)"),
    "labels as numbers": (TunedRegressor(), lambda e: e.fit(X, np.array(["a", "b"] * 6)), "could not convert string"),
    "missing values": (TunedRegressor(), lambda e: e.fit(X * np.nan, N), "Input X contains NaN"),
    "huge values": (TunedRegressor(), lambda e: e.fit(X * 1e300, N), "`X` has numbers that are too large"),
    "huge target": (TunedRegressor(), lambda e: e.fit(X, N * 1e300), "`y` has numbers that are too large"),
    "other lengths": (TunedRegressor(), lambda e: e.fit(X, N[:7]), "inconsistent numbers of samples"),
    "negative weights": (TunedRegressor(), lambda e: e.fit(X, N, -N), "`sample_weight` must hold numbers ≥ 0"),
    "weights of five rows": (
        TunedRegressor(),
        lambda e: e.fit(X, N, np.arange(12) < 5),
        "at least 6 rows with a positive weight.* 5",
    ),
    "no module": (TunedClassifier("linear"), lambda e: e.fit(X, Y), "`module` must be an nn.Module, a factory"),
    "module of other inputs": (
        TunedClassifier(nn.Linear(3, 2)),
        lambda e: e.fit(X, Y),
        "`module` fails with RuntimeError",
    ),
    "module of other outputs": (
        TunedClassifier(nn.Linear(2, 3)),
        lambda e: e.fit(X, Y),
        r"a score for each of the 2 classes, shape \(2, 2\) for 2 rows, got .*\(2, 3\)",
    ),
    "module without parameters": (TunedClassifier(nn.ReLU()), lambda e: e.fit(X, Y), "must have parameters to train"),
    "factory that fails": (TunedClassifier(nn.ReLU), lambda e: e.fit(X, Y), "a factory is called as module"),
    "factory of a number": (TunedClassifier(lambda i, o: 3), lambda e: e.fit(X, Y), "`module` must be an nn.Module"),
    "no loss": (TunedClassifier(loss="hinge"), lambda e: e.fit(X, Y), "`loss` must be a function"),
    "loss without rows": (
        TunedClassifier(loss=lambda p, t: nn.functional.cross_entropy(p, t)),
        lambda e: e.fit(X, Y, np.arange(12) + 1),
        "`loss` must have an argument `reduction`",
    ),
    "unknown metric": (TunedClassifier(metric="speed"), lambda e: e.fit(X, Y), "scikit-learn scorer, got 'speed'"),
    "metric of classes": (TunedRegressor(metric="f1"), lambda e: e.fit(X, N), "`metric` must score numbers"),
    "metric of numbers": (TunedClassifier(metric="r2"), lambda e: e.fit(X, Y), "`metric` must score classes"),
    "metric without weights": (
        TunedRegressor(metric=lambda found, wanted: 0.0),
        lambda e: e.fit(X, N, np.arange(12) + 1),
        "`metric` must take `sample_weight`",
    ),
    "metric that is a number": (TunedRegressor(metric=3), lambda e: e.fit(X, N), "`metric` must be a function"),
    "two folds": (TunedRegressor(folds=2), lambda e: e.fit(X, N), "`folds` must be a number ≥ 3"),
    "folds in words": (TunedRegressor(folds="five"), lambda e: e.fit(X, N), "`folds` must be"),
    "folds beyond the rows": (TunedRegressor(folds=[([0], [99])] * 3), lambda e: e.fit(X, N), "names row 99"),
    "standardize in words": (TunedRegressor(standardize="yes"), lambda e: e.fit(X, N), "'standardize' parameter"),
    "no steps": (TunedRegressor(inner_steps=0), lambda e: e.fit(X, N), "'inner_steps' parameter"),
    "dynamics in words": (TunedRegressor(inner="adam"), lambda e: e.fit(X, N), "inner"),
    "unknown engine": (TunedRegressor(engine="steam"), lambda e: e.fit(X, N), "engine"),
    "not fitted": (TunedRegressor(), lambda e: e.predict(X), "not fitted yet"),
    "one dimension": (TunedRegressor(), lambda e: e.fit(N, N), "Expected 2D array, got 1D array"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_wrong_arguments_of_estimators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator, call, message = ESTIMATORS[name]
    with pytest.raises((PactuneError, ValueError), match=message) as error:
        call(estimator)
    assert isinstance(error.value, ValueError)
    assert not hasattr(estimator, "module_")


def test_there_are_many_wrong_inputs() -> None:
    assert len(COMMANDS) + len(ESTIMATORS) >= 60
