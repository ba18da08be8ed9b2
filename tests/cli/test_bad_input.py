"""Bad input to the command line: a status, one clear message on stderr, nothing on stdout, and never a traceback."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pactune.cli import main

Write = Callable[[Path], Any]


class Case(NamedTuple):
    """A command in a folder in which `write` has made its files; `status` 1 is failed, 2 wrong usage."""

    command: str
    status: int
    message: str
    write: Write = lambda folder: None


def file(name: str, content: str | bytes) -> Write:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def csv(content: str | bytes) -> Write:
    return file("t.csv", content)


def numbers(rows: int, columns: str = "a,b,y", **changes: str) -> Write:
    """A table of numbers; a change replaces the first value of a column."""
    names = columns.split(",")
    lines = [
        ",".join(str((7 * row * (place + 2)) % 11 + row / 10) for place in range(len(names))) for row in range(rows)
    ]
    cells = lines[0].split(",")
    for name, value in changes.items():
        cells[names.index(name)] = value
    return csv("\n".join([columns, ",".join(cells), *lines[1:]]) + "\n")


def arrays(**changes: Any) -> Write:
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {}
    for part, rows in (("train", 12), ("valid", 10)):
        held |= {f"x_{part}": rng.normal(size=(rows, 3)), f"y_{part}": np.arange(rows) % 2}
    held = {name: value for name, value in {**held, **changes}.items() if value is not None}

    def write(folder: Path) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **held)
        (folder / "d.npz").write_bytes(buffer.getvalue())

    return write


def spec(text: str, study: str = "def build(seed):\n    return None\n") -> Write:
    def write(folder: Path) -> None:
        (folder / "s.toml").write_text(text)
        (folder / "study.py").write_text(study)

    return write


def fine(build: str = "study.py:build", grid: str = "seed = [0]", fit: str = "outer_steps = 1", more: str = "") -> str:
    return f'build = "{build}"\n[grid]\n{grid}\n[fit]\n{fit}\n{more}\n'


SELECT, TRAIN, SWEEP = (
    "select t.csv --target y",
    "certify train d.npz --models 1 --steps 2",
    "sweep s.toml --output out",
)
NAN_ROWS = np.full((12, 3), np.nan)
CASES: dict[str, Case] = {
    # names
    "unknown command": Case("train", 2, "No such command 'train'"),
    "unknown option": Case("demo --fast", 2, "No such option"),
    "unknown format": Case("demo --format yaml", 2, "yaml"),
    "unknown item": Case("reproduce figure-9", 2, "No such command"),
    "unknown criterion": Case(f"{SELECT} --criterion bic", 2, "bic", numbers(20)),
    "unknown posterior": Case(f"{TRAIN} --posterior all", 2, "all", arrays()),
    # numbers
    "negative seed": Case("demo --seed -1", 2, "seed"),
    "a word for a number": Case("demo --seed one", 2, "seed"),
    "no seeds": Case("reproduce freedman --seeds 0", 2, "seeds"),
    "no features": Case(f"{SELECT} --max-features 0", 2, "max-features", numbers(20)),
    "share above one": Case(f"{SELECT} --validation-fraction 1.5", 2, "between 0 and 1", numbers(20)),
    "share that is NaN": Case(f"{SELECT} --validation-fraction nan", 2, "between 0 and 1", numbers(20)),
    "temperature in words": Case(f"{SELECT} --beta hot", 2, "positive number", numbers(20)),
    "more errors than rows": Case("certify hold-out --errors 11 --rows 10 --fresh", 2, "at most `--rows`=10"),
    "negative errors": Case("certify hold-out --errors -1 --rows 10 --fresh", 2, "errors"),
    "no rows": Case("certify hold-out --errors 0 --rows 0 --fresh", 2, "rows"),
    "no probability": Case("certify hold-out --errors 1 --rows 10 --fresh --delta 0", 2, "delta"),
    "probability that is NaN": Case("certify hold-out --errors 1 --rows 10 --fresh --delta nan", 2, "delta"),
    "not fresh": Case("certify hold-out --errors 1 --rows 10", 1, "fresh sample"),
    "negative step size": Case(f"{TRAIN} --lr -1", 2, "lr", arrays()),
    # paths
    "no table": Case("select none.csv --target y", 2, "there is no file none.csv"),
    "folder for a table": Case("select . --target y", 2, "is a folder, not a file"),
    "text file for a table": Case("select t.txt --target y", 2, "must be a .csv or .parquet file", file("t.txt", "a")),
    "output below a file": Case(f"{SELECT} --output t.csv/out", 2, "--output", numbers(20)),
    "demo below a file": Case("demo --output t.csv/out", 2, "`--output` must be a folder", numbers(20)),
    "no arrays": Case("certify train none.npz", 2, "there is no file none.npz"),
    "no images": Case("reproduce certificate --quick --mnist none", 2, "there is no folder none"),
    "no spec": Case("sweep none.toml", 2, "there is no file none.toml"),
    "folder for a spec": Case("sweep .", 2, "is a folder, not a file"),
    "sweep below a file": Case("sweep s.toml --output s.toml/out", 2, "`--output` must be a folder", spec(fine())),
    # tables
    "empty table": Case(SELECT, 2, "cannot read t.csv", csv("")),
    "header alone": Case(SELECT, 2, "at least 10 rows", csv("a,b,y\n")),
    "ragged table": Case(SELECT, 2, "cannot read t.csv", csv("a,y\n" + "1,2\n" * 12 + "1,2,3,4\n")),
    "rows with a comma at the end": Case(
        SELECT, 2, "rows of t.csv have more values than its header has names", csv("a,y\n" + "1,2,\n" * 12)
    ),
    "rows with a number in front": Case(
        "tune t.csv --target y --output out", 2, "more values than its header", csv("a,y\n" + "0,1,2\n" * 12)
    ),
    "decimal commas between semicolons": Case(SELECT, 2, "use --delimiter ';'", csv("a;y\n" + "1,5;2,5\n" * 12)),
    "open quote": Case(SELECT, 2, "cannot read t.csv", csv("a,y\n" + "1,2\n" * 12 + '"1,2\n')),
    "bytes that are no text": Case(SELECT, 2, "cannot read t.csv", csv(b"\xff\xfe\x00a,y\n\x80\x81")),
    "unknown target": Case("select t.csv --target price", 2, "no column named 'price'", numbers(20)),
    "unknown column to drop": Case(f"{SELECT} --drop z", 2, "no column named 'z'", numbers(20)),
    "target dropped": Case(f"{SELECT} --drop y", 2, "cannot be dropped", numbers(20)),
    "too few rows": Case(SELECT, 2, "at least 10 rows", numbers(9)),
    "missing value": Case(SELECT, 2, "missing values in column 'a'", numbers(20, a="")),
    "infinite value": Case(SELECT, 2, "infinite values in column 'b'", numbers(20, b="inf")),
    "text among numbers": Case(SELECT, 2, "text or dates in column 'a'", numbers(20, a="Basel")),
    "missing target": Case(SELECT, 2, "missing values", numbers(20, y="")),
    "target alone": Case(SELECT, 2, "no column is left", numbers(20, "y")),
    "truncated parquet": Case("select t.parquet --target y", 2, "parquet", file("t.parquet", b"PAR1\x00")),
    # arrays
    "arrays that are none": Case(TRAIN, 2, "d.npz", file("d.npz", b"not an archive")),
    "truncated arrays": Case(TRAIN, 2, "d.npz", file("d.npz", b"PK\x03\x04 and then nothing")),
    "pickled arrays": Case(TRAIN, 2, "d.npz", arrays(x_train=np.array([{}, {}], dtype=object))),
    "missing arrays": Case(TRAIN, 2, "lacks y_valid", arrays(y_valid=None)),
    "empty arrays": Case(TRAIN, 2, "empty", arrays(x_train=np.zeros((0, 3)), y_train=np.zeros(0, int))),
    "rows that differ": Case(TRAIN, 2, "same number of rows", arrays(y_train=np.arange(5) % 2)),
    "columns that differ": Case(TRAIN, 2, "columns", arrays(x_valid=np.zeros((10, 4)))),
    "arrays of NaN": Case(TRAIN, 2, "finite", arrays(x_train=NAN_ROWS)),
    "arrays of words": Case(TRAIN, 2, "x_train", arrays(x_train=np.array([["a"] * 3] * 12))),
    "labels that are fractions": Case(TRAIN, 2, "y_valid must hold labels", arrays(y_valid=np.arange(10) / 2)),
    "inputs without columns": Case(TRAIN, 2, "x_train must have a row", arrays(x_train=np.zeros(12))),
    "negative labels": Case(TRAIN, 2, "labels", arrays(y_train=np.arange(12) % 2 - 1)),
    # specs
    "malformed TOML": Case(
        SWEEP, 2, r"cannot read s.toml: it is no valid TOML: .*line 2", spec("grid = 1\nbuild = study.py\n")
    ),
    "TOML twice": Case(SWEEP, 2, "no valid TOML", spec(fine() + "[grid]\nseed = [1]\n")),
    "TOML that is no text": Case(SWEEP, 2, "no valid TOML", file("s.toml", b"\xff\xfe\x00")),
    "empty TOML": Case(SWEEP, 2, "lacks build and grid and outer_steps", spec("")),
    "unknown key": Case(SWEEP, 2, "unknown key `zeta`; known are build", spec("zeta = 1\n" + fine())),
    "unknown key of fit": Case(SWEEP, 2, r"unknown key `steps` in \[fit\]", spec(fine(fit="steps = 3"))),
    "unknown resource": Case(SWEEP, 2, r"unknown key `tpus`", spec(fine(more="[resources]\ntpus = 1"))),
    "no table for fit": Case(SWEEP, 2, r"`fit` must be a table", spec("fit = 3\n")),
    "no function": Case(SWEEP, 2, "has no function 'make'", spec(fine("study.py:make"))),
    "no file of the function": Case(SWEEP, 2, "there is no file", spec(fine("none.py:build"))),
    "no module": Case(SWEEP, 2, "cannot be imported: ModuleNotFoundError", spec(fine("nothing.here:build"))),
    "no colon": Case(SWEEP, 2, '`build` must be "file.py:function"', spec(fine("study.py"))),
    "file that fails": Case(SWEEP, 2, "ZeroDivisionError: division", spec(fine(), "1 / 0")),
    "file that is no Python": Case(SWEEP, 2, "SyntaxError", spec(fine(), "def build(")),
    "test set that fails": Case(
        SWEEP,
        2,
        "`test` = .* fails: KeyError",
        spec(fine(fit='outer_steps = 1\ntest = "study.py:f"'), "def f():\n    {}[1]\nbuild = f"),
    ),
    "grid of a number": Case(SWEEP, 2, r"`grid\['seed'\]` must be a list", spec(fine(grid="seed = 1"))),
    "empty grid": Case(SWEEP, 2, "`grid` must map at least one name", spec(fine(grid=""))),
    "empty list": Case(SWEEP, 2, "at least one value", spec(fine(grid="seed = []"))),
    "grid of NaN": Case(SWEEP, 2, "finite numbers", spec(fine(grid="zeta = [nan]"))),
    "value twice": Case(SWEEP, 2, "a value twice", spec(fine(grid="seed = [1, 1]"))),
    "key that is taken": Case(SWEEP, 2, "'risk', which is a column", spec(fine(grid="risk = [1]"))),
    "key that is no name": Case(SWEEP, 2, "name of an argument", spec(fine(grid='"a b" = [1]'))),
    "words for steps": Case(SWEEP, 2, "`outer_steps` must be a whole number", spec(fine(fit='outer_steps = "5"'))),
    "words for a tolerance": Case(SWEEP, 2, "`tolerance`", spec(fine(fit='outer_steps = 1\ntolerance = "no"'))),
    "unknown keep": Case(SWEEP, 2, "`keep` must be one of", spec(fine(fit='outer_steps = 1\nkeep = "best"'))),
    "no CPU": Case(SWEEP, 2, "`cpus` must be a number > 0", spec(fine(more="[resources]\ncpus = 0"))),
    "one and a half GPUs": Case(SWEEP, 2, "whole where it is more than 1", spec(fine(more="[resources]\ngpus = 1.5"))),
    "negative retries": Case(SWEEP, 2, "`retries` must be", spec(fine(more="[resources]\nretries = -1"))),
    "nobody at the address": Case(f"{SWEEP} --address 127.0.0.1:1", 2, "running Ray cluster", spec(fine())),
    "no address": Case(f"{SWEEP} --address here", 2, "running Ray cluster", spec(fine())),
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_is_a_status_and_a_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    if case.command.startswith("sweep"):
        pytest.importorskip("ray", reason="ray is not installed: pip install 'pactune[sweep]'")
    case.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pactune", *case.command.split()])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capfd.readouterr()
    words = re.sub(r"[\s│]+", " ", captured.err)  # wrong options come in a box
    assert stop.value.code == case.status, words
    assert re.search(case.message, words), words
    assert captured.out == ""
    assert "Traceback" not in words
