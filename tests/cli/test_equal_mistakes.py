"""Equal mistakes get equal sentences and equal exit codes in all commands; every command speaks before it imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.cli.tables import run_pactune, small_table, train_quickly, write

BUSY_SECONDS = 2.0  # of processor time to the first line; a busy machine takes more time, not more work


class Mistake(NamedTuple):
    """A row of the table.

    Attributes:
        sentence: a pattern of the last line on stderr.
        commands: the commands in which the mistake can be made.
        make: writes files into the folder of the command.
        status: the exit code.
    """

    sentence: str
    commands: tuple[str, ...]
    make: Callable[[Path], object] = lambda folder: None
    status: int = 2


def text(name: str, content: str = "a") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def joined_by(mark: str) -> Callable[[Path], object]:
    return lambda folder: small_table().to_csv(folder / "data.csv", sep=mark, index=False)


def samples(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), np.arange(20) % 2
    np.savez(folder / "data.npz", x_train=x[:10], y_train=y[:10], x_valid=x[10:], y_valid=y[10:])


def grouped(factor: float) -> Callable[[Path], object]:
    """Write the ages with commas between thousands."""
    ages = small_table()["age"].dropna().mul(factor).map("{:,.0f}".format)
    return lambda folder: write(folder, small_table().assign(age=ages).dropna())


def renamed(folder: Path) -> None:
    write(folder, small_table().rename(columns={"town": "twon"}))


FEW = ["age", "town", "member", "id", "kind"]
NUMBERS = "--drop id --drop town --drop member"
OF_AGE = ("tune data.csv --target age --output new", "select data.csv --target age --task regression")
TUNE, SELECT = "tune data.csv --target kind --output new", "select data.csv --target kind --output new"
MISTAKES = {
    "no file": Mistake(
        r"pactune: there is no file none\.\w+",
        (
            "tune none.csv --target kind --output new",
            "predict model none.csv",
            "select none.csv --target kind",
            "certify train none.npz",
            "certify validation none.npz",
            "sweep none.toml",
        ),
    ),
    "no folder": Mistake(
        "pactune: there is no folder none",
        ("predict none data.csv", "report none", "reproduce certificate --mnist none --output new"),
    ),
    "folder for a file": Mistake(
        r"pactune: \. is a folder, not a file",
        (
            "tune . --target kind --output new",
            "predict model .",
            "select . --target kind",
            "certify train .",
            "sweep .",
        ),
    ),
    "file for a folder": Mistake(
        r"pactune: data\.csv is a file, not a folder",
        ("predict data.csv data.csv", "report data.csv", "reproduce certificate --mnist data.csv --output new"),
    ),
    "another kind of file": Mistake(
        r"pactune: (a table|data other than \"digits\") must be a \.\w+( or \.parquet)? file, got data\.txt",
        (
            "tune data.txt --target kind --output new",
            "predict model data.txt",
            "select data.txt --target kind",
            "certify train data.txt",
        ),
        text("data.txt"),
    ),
    "file without content": Mistake(
        r"pactune: cannot read data\.\w+: .*",
        (
            TUNE,
            SELECT,
            "predict model data.csv",
            "certify train data.npz",
            "sweep data.toml",
        ),
        lambda folder: [(folder / f"data.{kind}").write_bytes(b"\xff\xfe\x00") for kind in ("csv", "npz", "toml")],
    ),
    "folder to write below a file": Mistake(
        r"pactune: `--output` must be a folder that can be written, got data\.csv/new: a part of the path is a file",
        (
            "tune data.csv --target kind --output data.csv/new",
            "select data.csv --target kind --output data.csv/new",
            "sweep data.toml --output data.csv/new",
            "demo --output data.csv/new",
            "reproduce freedman --output data.csv/new",
            "reproduce certificate --output data.csv/new",
            "reproduce table --quick --output data.csv/new",
        ),
        text("data.toml"),
    ),
    "file to write below a file": Mistake(
        r"pactune: `--output` must be a file that can be written, got data\.csv/new: a part of the path is a file",
        ("predict model data.csv --output data.csv/new", "report model --output data.csv/new"),
    ),
    "folder where a file is written": Mistake(
        r"pactune: `--output` must be a file that can be written, got model: it is a folder",
        ("predict model data.csv --output model", "report model --output model"),
    ),
    "unknown column": Mistake(
        r"pactune: no column named 'towm'; did you mean 'town'\?",
        (
            "tune data.csv --target towm --output new",
            "select data.csv --target towm",
            f"{TUNE} --drop towm",
            f"{SELECT} --drop towm",
        ),
    ),
    "column of the model missing": Mistake(
        r"pactune: no column named 'town'; did you mean 'twon'\?",
        ("predict model data.csv", "tune data.csv --target town --output new", "select data.csv --target town"),
        renamed,
    ),
    "column twice": Mistake(
        "pactune: more than one column 'kind'; rename them",
        (TUNE, SELECT, "predict model data.csv"),
        lambda folder: write(folder, small_table()[["age", "town", "member", "kind", "kind"]]),
    ),
    "values joined by semicolons": Mistake(
        r"pactune: no columns? named .*; the table has one column .*; its names are joined by ';': use --delimiter ';'",
        (TUNE, SELECT, "predict model data.csv"),
        joined_by(";"),
    ),
    "values joined by tabs": Mistake(
        "pactune: no columns? named .*; its names are joined by tabs: use --delimiter tab",
        (TUNE, SELECT, "predict model data.csv"),
        joined_by("\t"),
    ),
    "semicolons and decimal commas": Mistake(
        r"pactune: cannot read data.csv: .*; its names are joined by ';': use --delimiter ';'",
        (TUNE, SELECT, "predict model data.csv"),
        text("data.csv", "a;kind\n1;2\n1,5;2,5;1,2\n"),
    ),
    "decimal commas": Mistake(
        "pactune: numbers with a decimal comma in column 'age'; write them with a point",
        (
            f"{TUNE} --delimiter ; --drop id",
            f"{SELECT} --delimiter ; {NUMBERS}",
            *(f"{command} --delimiter ;" for command in OF_AGE),
        ),
        lambda folder: (
            small_table().dropna().to_csv(folder / "data.csv", sep=";", decimal=",", index=False, columns=FEW)
        ),
    ),
    "very large numbers": Mistake(
        r"pactune: infinite values in column 'age', or some beyond 1e\+100; remove the rows or use --drop",
        (f"{TUNE} --drop id", f"{SELECT} {NUMBERS}"),
        lambda folder: write(folder, small_table().assign(age=small_table()["age"] * 1e300).dropna()),
    ),
    "thousands separators": Mistake(
        "pactune: numbers with thousands separators in column 'age'; remove the separators",
        (TUNE, f"{SELECT} {NUMBERS}", *OF_AGE),
        grouped(1e6),
    ),
    "thousands separators or decimal commas": Mistake(
        "pactune: the commas in column 'age' may be thousands separators or decimal commas; "
        "remove the separators, or write decimals with a point",
        (TUNE, f"{SELECT} {NUMBERS}", *OF_AGE),
        grouped(1e3),
    ),
    "long delimiter": Mistake(
        ".*Invalid value for --delimiter: must be one character or 'tab', got 'ab'.*",
        (f"{TUNE} --delimiter ab", f"{SELECT} --delimiter ab", "predict model data.csv --delimiter ab"),
    ),
    "too few rows": Mistake(
        "pactune: a table must have at least 10 rows to train and validate on, got 5",
        (TUNE, SELECT),
        lambda folder: write(folder, small_table().head(5)),
    ),
    "nothing in the folder": Mistake(
        r"pactune: empty holds no (model|run)\b.*",
        ("predict empty data.csv", "report empty"),
        lambda folder: (folder / "empty").mkdir(),
    ),
    "unknown option": Mistake(
        ".*No such option: --fats.*",
        tuple(f"{command} --fats" for command in (TUNE, SELECT, "predict a b", "report .", "sweep s", "certify train")),
    ),
    "no argument": Mistake(
        ".*Missing (argument|option) .*", ("tune", "select", "predict", "report", "sweep", "certify hold-out")
    ),
}
ROWS = [(name, command) for name, mistake in MISTAKES.items() for command in mistake.commands]


@pytest.fixture(scope="module", name="trained")
def trained_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pactune.cli.training_table import prepare_table
    from pactune.cli.tune import _fit

    folder: Path = tmp_path_factory.mktemp("trained") / "model"
    with pytest.MonkeyPatch.context() as patch:
        train_quickly(patch)
        found, result = _fit(prepare_table(small_table(), "kind", ["price"], "auto"), "linear", {"folds": 3})
    found.save(folder, result)
    return folder


@pytest.mark.parametrize(("name", "command"), ROWS, ids=[f"{name}: {command}" for name, command in ROWS])
def test_mistake(
    name: str,
    command: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if command.startswith("sweep"):
        pytest.importorskip("ray")
    mistake = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(trained)
    write(tmp_path, small_table())
    mistake.make(tmp_path)
    status, out, err = run_pactune(monkeypatch, capfd, *command.split())
    last = err.strip().splitlines()[-1] if "Usage" not in err else re.sub(r"[\s│╭╮╰╯─]+", " ", err)
    assert re.fullmatch(mistake.sentence, last), err
    assert (status, out) == (mistake.status, "")
    assert "Traceback" not in err
    assert not (tmp_path / "new").exists()


COMMANDS = {
    "tune": TUNE,
    "predict": "predict model data.csv",
    "select": SELECT,
    "report": "report .",
    "certify": "certify train data.npz",
    "certify hold-out": "certify hold-out --errors 1 --rows 20 --fresh",
    "certify validation": "certify validation data.npz",
    "sweep": "sweep s.toml",
    "demo": "demo --output new",
    "freedman": "reproduce freedman --quick --output new",
    "certificate": "reproduce certificate --quick --output new",
    "table": "reproduce table --quick --output new",
}
STOP_AT_FIRST_LINE = """
import os, sys, time
class First:
    encoding = "utf-8"
    def isatty(self): return False
    def flush(self): pass
    def write(self, text):
        text = text.decode() if isinstance(text, bytes) else text
        if text.strip():
            heavy = sorted({'torch', 'pandas', 'sklearn', 'scipy', 'matplotlib', 'ray'} & set(sys.modules))
            os.write(1, f"{time.process_time():.2f} {heavy} {text}".encode())
            os._exit(0)
sys.stderr = First()
sys.argv = ["pactune", *sys.argv[1:]]
from pactune.cli import main
main()
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_before_anything_slow_is_imported(name: str, tmp_path: Path) -> None:
    for file in ("s.toml", "data.csv"):
        (tmp_path / file).write_text("")
    samples(tmp_path)
    command = [sys.executable, "-c", STOP_AT_FIRST_LINE, *COMMANDS[name].split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    seconds, heavy, words = done.stdout.split(" ", 2)
    assert heavy == "[]"
    assert words.startswith(f"{name.split()[0]}: ")
    assert float(seconds) < BUSY_SECONDS


def test_python_runs_the_package() -> None:
    command = [sys.executable, "-m", "pactune", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ))
    assert re.fullmatch(r"pactune \d+\.\d+\.\d+\n", done.stdout)


CTRL_C_AT_AN_IMPORT = """
import signal, sys
class Finder:
    def find_spec(name, *rest):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder)
from pactune.cli import main
main()
"""


@pytest.mark.parametrize("module", ["pactune.extras", "typer", "pactune.cli.app", "pactune.errors"])
def test_ctrl_c_before_the_first_line_is_a_status_without_a_traceback(module: str) -> None:
    command = [sys.executable, "-c", CTRL_C_AT_AN_IMPORT, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
