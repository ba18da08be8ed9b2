"""`pactune select`: what it prints and writes, and what it says when a table cannot be used."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from pactune.cli import main
from pactune.cli.tables import split_target
from pactune.errors import DataError


@pytest.fixture
def pactune(monkeypatch, capsys):
    """Run the command line in this process; gives (exit status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pactune", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 12)), columns=[f"x{place}" for place in range(12)])
    frame["price"] = 40 + 10 * (frame["x3"] - frame["x8"]) + 10 * rng.normal(size=200)
    return frame


def select(pactune, tmp_path, frame, *options, target="price"):
    file = tmp_path / "data.csv"
    frame.to_csv(file, index=False)
    return pactune("select", file, "--target", target, "--output", tmp_path / "out", *options)


def test_prints_the_features_and_writes_path_and_plot(pactune, tmp_path, table):
    status, out, err = select(pactune, tmp_path, table)
    assert status == 0
    assert "Regression, because 'price' holds numbers with 200 different values." in out
    assert "ebic chose 2 features" in out
    assert "x3" in out
    assert "x8" in out
    assert re.search(r"R² 0\.\d{3} with chosen features and 0\.\d{3} with all 12 ", out)
    assert "200 rows" in err
    path = pd.read_csv(tmp_path / "out" / "path.csv")
    assert set(path.loc[path["selected"], "feature"]) == {"x3", "x8"}
    assert (tmp_path / "out" / "path.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("criterion", ["pac-bayes", "validation", "aic", "ebic"])
def test_json_is_only_json_on_stdout(pactune, tmp_path, table, criterion):
    status, out, _ = select(pactune, tmp_path, table, "--format", "json", "--criterion", criterion)
    found = json.loads(out)
    assert status == 0
    assert found["criterion"] == criterion
    assert {"x3", "x8"} <= set(found["selected"])
    assert found["path"][0]["feature"] is None
    assert (found["task"], found["cross_validation"]["metric"]) == ("regression", "R²")
    assert 0 < found["cross_validation"]["chosen"]["score"] < 1
    assert found["cross_validation"]["all_features"]["features"] == 12
    assert found["note"]


def test_five_seeds_print_the_same(pactune, tmp_path, table):
    found = {select(pactune, tmp_path, table, "--seed", seed, "--repeats", 1)[1] for seed in range(5)}
    assert len(found) == 1
    assert "ebic chose 2 features" in found.pop()


TARGETS = {
    "labels": (lambda price: np.where(price > 40, "dear", "cheap"), (), "classification", "labels"),
    "true and false": (lambda price: price > 40, (), "classification", "labels"),
    "zero and one": (lambda price: (price > 40).astype(int), (), "classification", "two different values"),
    "two numbers": (lambda price: np.where(price > 40, 1.5, -1.5), (), "classification", "two different values"),
    "whole numbers": (lambda price: pd.cut(price, 4, labels=False) * 1.0, (), "classification", "only 4 different"),
    "numbers": (lambda price: price, (), "regression", "200 different values"),
    "many whole numbers": (lambda price: price.round(), (), "regression", "different values"),
    "as told": (lambda price: (price > 40).astype(int), ("--task", "regression"), "regression", "--task"),
    "classes as told": (lambda price: price.round(-1), ("--task", "classification"), "classification", "--task"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_says_which_task_it_took_and_why(pactune, tmp_path, table, name):
    change, options, task, reason = TARGETS[name]
    table["price"] = change(table["price"])
    status, out, _ = select(pactune, tmp_path, table, "--format", "json", "--repeats", 1, *options)
    found = json.loads(out)
    assert (status, found["task"]) == (0, task)
    assert reason in found["task_reason"]
    assert found["note"].startswith(f"{task.capitalize()}, because {found['task_reason']}.")
    assert found["cross_validation"]["metric"] == ("accuracy" if task == "classification" else "R²")


def test_cross_validation_can_be_left_out(pactune, tmp_path, table):
    status, out, _ = select(pactune, tmp_path, table, "--format", "json", "--repeats", 0)
    assert (status, json.loads(out)["cross_validation"]) == (0, None)
    status, out, _ = select(pactune, tmp_path, table, "--repeats", 0)
    assert (status, "cross-validation" in out) == (0, False)


def test_max_features_bounds_the_path_and_says_so(pactune, tmp_path, table):
    _, out, _ = select(pactune, tmp_path, table, "--format", "json", "--max-features", 1)
    found = json.loads(out)
    assert len(found["selected"]) == 1
    assert "raise --max-features (now 1)" in found["note"]


def test_parquet_and_classes(pactune, tmp_path, table):
    pytest.importorskip("pyarrow")
    table["price"] = np.where(table["price"] > 40, "dear", "cheap")
    file = tmp_path / "data.parquet"
    table.to_parquet(file)
    status, out, _ = pactune("select", file, "--target", "price", "--format", "json", "--output", tmp_path / "out")
    assert status == 0
    assert sorted(json.loads(out)["selected"]) == ["x3", "x8"]


def test_labels_of_several_types_become_text(table):
    _, values = split_target(table.assign(price=[1, "a"] * 100), "price", [])
    assert set(values) == {"1", "a"}


def test_repeated_columns_are_named(pactune, tmp_path, table):
    table.columns = ["x0", "x0", *table.columns[2:]]
    with pytest.raises(DataError, match="more than one column 'x0'"):
        split_target(table, "price", [])


def test_beta_auto(pactune, tmp_path, table):
    status, out, _ = select(pactune, tmp_path, table, "--format", "json", "--criterion", "pac-bayes", "--beta", "auto")
    assert status == 0
    assert 0 < json.loads(out)["beta"] <= 1


def with_missing(frame):
    return frame.assign(x4=frame["x4"].where(frame.index != 7))


def with_infinite(frame):
    return frame.assign(x4=frame["x4"].where(frame.index != 7, np.inf))


BAD_TABLES = {
    "missing values": (with_missing, "price", "'x4'"),
    "infinite": (with_infinite, "price", "'x4'"),
    "huge": (lambda frame: frame.assign(x4=frame["x4"] * 1e200), "price", "'x4', or some beyond 1e+100"),
    "constant": (lambda frame: frame.assign(x5=3.0), "price", "nothing varies in column 'x5'"),
    "text": (lambda frame: frame.assign(town="Basel"), "price", "text or dates in column 'town'"),
    "no target": (lambda frame: frame, "cost", "no column named 'cost'"),
    "constant target": (lambda frame: frame.assign(price=1.0), "price", "target 'price' is constant"),
    "missing target": (lambda frame: frame.assign(price=frame["x4"].where(frame.index > 2)), "price", "3 missing"),
    "free text target": (lambda frame: frame.assign(price=[f"n{row}" for row in range(200)]), "price", "too many"),
    "infinite target": (lambda frame: frame.assign(price=with_infinite(frame)["x4"]), "price", "infinite values"),
    "nine rows": (lambda frame: frame.head(9), "price", "at least 10 rows"),
    "no features": (lambda frame: frame[["price"]], "price", "no column is left"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_errors_name_the_column_in_one_line(pactune, tmp_path, table, name):
    change, target, words = BAD_TABLES[name]
    status, out, err = select(pactune, tmp_path, change(table), target=target)
    assert status == 2
    assert out == ""
    assert words in err
    assert [line.partition(":")[0] for line in err.strip().splitlines()] == ["select", "pactune"]
    assert "Traceback" not in err


def test_dropping_the_bad_column_helps(pactune, tmp_path, table):
    status, _, _ = select(pactune, tmp_path, table.assign(town="Basel", x5=3.0), "--drop", "town", "--drop", "x5")
    assert status == 0


@pytest.mark.parametrize(
    "options",
    [
        *(("--beta", "hot"), ("--validation-fraction", "1.5"), ("--criterion", "bic"), ("--max-features", "0")),
        *(("--repeats", "-1"), ("--task", "ranking")),
    ],
)
def test_wrong_usage_is_status_2(pactune, tmp_path, table, options):
    status, _, err = select(pactune, tmp_path, table, *options)
    assert status == 2
    assert options[0] in err


def test_tasks_that_do_not_fit_the_target_are_status_2(pactune, tmp_path, table):
    status, out, err = select(pactune, tmp_path, table, "--task", "classification")
    assert (status, out, len(err.strip().splitlines())) == (2, "", 2)
    assert "too many for classes" in err
    table["price"] = np.where(table["price"] > 40, "dear", "cheap")
    status, out, err = select(pactune, tmp_path, table, "--task", "regression")
    assert (status, out, len(err.strip().splitlines())) == (2, "", 2)
    assert "must hold numbers" in err


def test_files_that_cannot_be_read(pactune, tmp_path):
    assert pactune("select", tmp_path / "none.csv", "--target", "y")[0] == 2
    (tmp_path / "data.txt").write_text("a,b\n1,2\n")
    status, _, err = pactune("select", tmp_path / "data.txt", "--target", "b")
    assert (status, "data.txt" in err) == (2, True)
    (tmp_path / "empty.csv").write_text("")
    status, _, err = pactune("select", tmp_path / "empty.csv", "--target", "b")
    assert (status, "empty.csv" in err) == (2, True)


def test_starts_without_torch(tmp_path, table):
    """Loading torch takes seconds, and selection needs none of it."""
    file = tmp_path / "data.csv"
    table.to_csv(file, index=False)
    arguments = ["pactune", "select", str(file), "--target", "price", "--output", str(tmp_path / "out")]
    code = (
        f"import sys, atexit; sys.argv = {arguments!r}; atexit.register(lambda: print('torch' in sys.modules))\n"
        "from pactune.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
