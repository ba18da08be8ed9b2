"""`pactune tune` and `pactune predict`: what they print and write; no code and no pickle in the folder."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pactune.cli.encoding import Encoding, column_pipeline, fit_encoding, prepared
from pactune.cli.training_table import prepare_table
from pactune.errors import SettingError
from tests.cli.tables import run_pactune, small_table, train_quickly, write

pytestmark = pytest.mark.slow
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pactune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    train_quickly(monkeypatch)
    return lambda *arguments: run_pactune(monkeypatch, capsys, *arguments)


def tune(run: Run, folder: Path, *options: Any, target: str = "kind", other: str = "price") -> tuple[int, str, str]:
    file = write(folder, small_table())
    basic = ("--target", target, "--drop", other, "--output", folder / "out", "--folds", 3)
    return run("tune", file, *basic, *options)


def test_classes_are_tuned_and_predicted(pactune: Run, tmp_path: Path) -> None:
    status, out, err = tune(pactune, tmp_path)
    assert status == 0
    assert [line.split("  ")[0] for line in out.splitlines()[1:4]] == ["plain training", "one decay", "the tuned model"]
    assert re.search(r"is kept: accuracy [\d.]+ % on held-out rows", out)
    assert err.startswith(f"tune: reading {tmp_path / 'data.csv'}\n")
    for words in (
        "classification, because 'kind' holds labels, not numbers",
        "2 rows without a value of 'kind' left out",
        "column 'unit' left out: nothing varies in it",
        "column 'id' left out: text with more than 20 different values",
        "58 rows, 1 columns of numbers, 2 of texts",
        r"3 missing values imputed: 2 in 'age' \(median [\d.]+\), 1 in 'town' \(most frequent '\w+'\)",
    ):
        assert re.search(words, err), err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model", "report.html", "table.json"}
    assert {path.suffix for path in (tmp_path / "out" / "model").iterdir()} == {".json", ".safetensors"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "is kept" in page
    assert "<script" not in page
    predictions = tmp_path / "new" / "p.csv"
    status, out, err = pactune("predict", tmp_path / "out", tmp_path / "data.csv", "--output", predictions)
    assert (status, out) == (0, "")
    assert "columns 'id', 'unit', 'price', 'kind' not used" in err
    found, known = pd.read_csv(predictions), small_table()
    assert list(found) == ["kind", "probability cheap", "probability dear"]
    assert np.allclose(found[["probability cheap", "probability dear"]].sum(axis=1), 1.0)
    assert (found["kind"] == known["kind"]).mean() > 0.8


def test_a_report_of_the_folder_keeps_the_notes(pactune: Run, tmp_path: Path) -> None:
    assert tune(pactune, tmp_path)[0] == 0
    first = (tmp_path / "out" / "report.html").read_text()
    assert pactune("report", tmp_path / "out")[0] == 0
    second = (tmp_path / "out" / "report.html").read_text()
    assert first != second
    for words in ("holds labels, not numbers", "nothing varies in it", "3 missing values imputed", "model: linear"):
        assert words in first
        assert words in second


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_numbers_are_tuned_and_predicted(pactune: Run, tmp_path: Path, model: str) -> None:
    options = ("--format", "json", "--model", model, "--metric", "neg_mean_absolute_error")
    status, out, _ = tune(pactune, tmp_path, *options, target="price", other="kind")
    found = json.loads(out)
    assert status == 0
    assert (found["task"], found["rows"], found["columns"]) == ("regression", 58, ["age", "town", "member"])
    assert len(found["table"]) == 3
    assert all(row["neg mean absolute error"] < -1.0 for row in found["table"])  # in the units of the price
    assert found["verdict"].count("is kept") == 1
    status, out, _ = pactune("predict", tmp_path / "out", tmp_path / "data.csv")
    known = small_table()["price"]
    errors = np.array([float(line) for line in out.splitlines()[1:]]) - known
    assert status == 0
    assert errors.abs().mean() < 0.5 * (known - known.mean()).abs().mean()


def test_predictions_are_those_of_the_estimator(pactune: Run, tmp_path: Path) -> None:
    from pactune.sklearn import TunedClassifier

    assert tune(pactune, tmp_path)[0] == 0
    _, out, err = pactune("predict", tmp_path / "out", write(tmp_path, small_table().assign(town="Chur"), "new.csv"))
    assert "60 values of 'town' were not seen in training" in err
    pipeline = column_pipeline(["age"], ["town", "member"])
    known = small_table().dropna(subset=["kind"]).astype({"member": str})
    model = TunedClassifier(standardize=False, folds=3).fit(pipeline.fit_transform(known), known["kind"])
    wanted = model.predict_proba(pipeline.transform(small_table().assign(town="Chur").astype({"member": str})))
    found = pd.read_csv(io.StringIO(out)).drop(columns="kind")
    assert np.allclose(found, wanted)


def test_parquet_and_delimiters(pactune: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    small_table().to_parquet(tmp_path / "data.parquet")
    small_table().to_csv(tmp_path / "data.csv", sep=";", index=False)
    for name, options in (("data.parquet", ()), ("data.csv", ("--delimiter", ";"))):
        out = tmp_path / f"out of {name}"
        basic = ("--target", "kind", "--drop", "price", "--folds", 3, "--output", out)
        assert pactune("tune", tmp_path / name, *basic, *options)[0] == 0
        assert json.loads((out / "table.json").read_text())["categories"][1]["values"] == ["False", "True"]
    _, first, _ = pactune("predict", tmp_path / "out of data.parquet", tmp_path / "data.csv", "--delimiter", ";")
    _, second, _ = pactune("predict", tmp_path / "out of data.csv", tmp_path / "data.parquet")
    assert first == second


def test_encoding_is_that_of_scikit_learn() -> None:
    table, names = small_table(), (["age", "unit"], ["town", "member", "kind"])
    fitted = column_pipeline(*names).fit(prepared(table, *names))
    encoding = Encoding.of(json.loads(json.dumps(fit_encoding(table, *names).document())))
    new = table.assign(town=["Chur", "Zug"] * 30, age=[None, "41.5"] * 30)
    for rows in (table, new):
        assert np.allclose(encoding.encode(rows), fitted.transform(prepared(rows, *names)))
    assert encoding.inputs == 9
    assert encoding.unseen(new) == {"town": 30}


def test_whole_numbers_with_gaps_stay_whole(pactune: Run, tmp_path: Path) -> None:
    frame = small_table()
    frame["grade"] = [1, 2, None, 2] * 15
    file = write(tmp_path, frame.astype({"grade": "Int64"}))
    assert pactune("tune", file, "--target", "grade", "--folds", 3, "--output", tmp_path / "out")[0] == 0
    assert json.loads((tmp_path / "out" / "table.json").read_text())["classes"] == [1, 2]


def test_labels_are_predicted_as_the_file_spells_them(pactune: Run, tmp_path: Path) -> None:
    frame = small_table()
    frame["code"] = np.where(frame["age"] > 40, "02", "01")
    file = write(tmp_path, frame)
    basic = ("--target", "code", "--drop", "price", "--folds", 3, "--output", tmp_path / "out")
    assert pactune("tune", file, *basic)[0] == 0
    _, out, _ = pactune("predict", tmp_path / "out", file)
    found = pd.read_csv(io.StringIO(out), dtype=str)
    assert list(found) == ["code", "probability 01", "probability 02"]
    assert set(found["code"]) == {"01", "02"}


@pytest.mark.parametrize(
    ("spelled", "labels"),
    [
        (["01", "02"], ["01", "02"]),
        (["1.50", "2.25"], ["1.50", "2.25"]),
        (["1", "2"], [1, 2]),
        (["1.0", "2.0"], [1.0, 2.0]),
        ([" 1", " 2"], [1, 2]),
        (["1", "1.0", "2"], [1.0, 2.0]),
    ],
)
def test_labels_are_numbers_if_these_print_back(spelled: list[str], labels: list[Any]) -> None:
    rows = pd.DataFrame({"a": range(60), "y": (spelled * 60)[:60]})
    values = prepare_table(rows, "y", [], "auto").values
    assert sorted(values.unique()) == labels


def test_numbers_of_a_regression_stay_numbers() -> None:
    rows = pd.DataFrame({"a": range(60), "y": [f"{row / 7:.3f}" for row in range(60)]})
    assert prepare_table(rows, "y", [], "auto").values.dtype == float


def test_a_blank_line_in_a_file_with_one_column_is_predicted_too(pactune: Run, tmp_path: Path) -> None:
    file = write(tmp_path, small_table()[["age", "price"]])
    assert pactune("tune", file, "--target", "price", "--folds", 3, "--output", tmp_path / "out")[0] == 0
    (tmp_path / "new.csv").write_text("\nage\n31\n\n50\n\n")
    status, out, err = pactune("predict", tmp_path / "out", tmp_path / "new.csv")
    assert (status, len(out.splitlines())) == (0, 1 + 3)
    assert "1 missing values imputed: 1 in 'age' (median" in err


@pytest.mark.parametrize(
    ("target", "labels"), [("probability 1", [0, 1]), ("probability 1.0", [0.5, 1.0]), ("probability b", ["a", "b"])]
)
def test_a_target_named_like_a_probability_is_refused_before_training(target: str, labels: list[Any]) -> None:
    rows = pd.DataFrame({"a": range(60), target: [str(label) for label in labels * 30]})
    with pytest.raises(SettingError, match=f"target '{target}' has the name .* of class {labels[1]} .*; rename it"):
        prepare_table(rows, target, [], "auto")
    prepare_table(rows.rename(columns={target: "probability"}), "probability", [], "auto")


def test_first_line_comes_at_once(tmp_path: Path) -> None:
    """The command speaks before it loads torch or pandas, which takes seconds."""
    arguments = [
        "pactune",
        "tune",
        str(write(tmp_path, small_table())),
        "--target",
        "kind",
        "--output",
        str(tmp_path / "o"),
    ]
    code = (
        f"import sys; sys.argv = {arguments!r}\nimport typer\n"
        "def echo(text, **options):\n"
        "    print(text, sorted({'torch', 'pandas', 'sklearn'} & set(sys.modules)))\n"
        "    sys.exit()\n"
        "typer.echo = echo\nfrom pactune.cli import main; main()"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"tune: reading .*data.csv \[\]\n", done.stdout)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 2.0
