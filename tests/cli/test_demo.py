"""`pactune demo` as a user meets it: the table, the page, wrong usage, Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "from pactune.cli import main; main()"
QUICK = (  # the whole way in a few rounds
    "from pactune.search import decays, many, tune\n"
    "decays.ROUNDS = decays.MOST_ROUNDS = tune.ROUNDS = many.OUTER_STEPS = tune.OUTER_STEPS = 2\n"
)
PROCEDURES = ["plain training", "one decay", "the tuned model"]


def run(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + MAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("demo")
    done = run("demo", "--output", str(folder), "--format", "json", before=QUICK)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_the_page_stands_alone_and_has_every_figure(finished: tuple[Path, dict]) -> None:
    folder, document = finished
    text = (folder / "report.html").read_text(encoding="utf-8")
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert titles[:3] == ["accuracy on held-out rows", "accuracy", "risk"]
    assert text.count('<svg id="figure-') == len(titles)
    assert "src=" not in text
    assert "<script" not in text
    assert all(f">{name}</td>" in text for name in PROCEDURES)
    assert document["verdict"][1:] in text


def test_the_numbers_are_those_of_the_comparison(finished: tuple[Path, dict]) -> None:
    document = finished[1]
    assert [row["model"] for row in document["table"]] == PROCEDURES
    assert all(0.1 < row["accuracy"] <= 1 and row["standard_error"] > 0 for row in document["table"])
    (kept,) = (row["model"] for row in document["table"] if row["kept"])
    assert document["verdict"].startswith(f"{kept} is kept: accuracy ")
    assert 0.1 < document["test_accuracy"] < 1


def test_the_table_is_for_people(tmp_path: Path) -> None:
    done = run("demo", "--output", str(tmp_path), "--seed", "1")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for name, line in zip(PROCEDURES, lines[1:4], strict=True):
        assert re.match(rf"{name} +\d\d\.\d ± \d\.\d %", line)
    assert sum(line.rstrip().endswith("kept") for line in lines[1:4]) == 1
    assert " is kept: accuracy " in lines[5]
    assert re.fullmatch(r"The kept model has an accuracy of \d\d\.\d % on all other images\.", lines[6])
    assert lines[7] == f"report: {tmp_path / 'report.html'}"


def test_the_first_line_comes_before_torch(tmp_path: Path) -> None:
    done = run("demo", "--output", str(tmp_path), before="import sys; sys.modules['torch'] = None\n")
    assert done.returncode != 0
    assert done.stderr.startswith("demo: ")


def test_it_computes_with_one_thread(tmp_path: Path) -> None:
    look = (
        "import torch\nfrom pactune.demo import digits\ntorch.set_num_threads(3)\n"
        "digits.run_demo = lambda *_, **__: exit(torch.get_num_threads() + 10)\n"
    )
    assert run("demo", "--output", str(tmp_path), before=look).returncode == 11


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["demo", "--seed", "-1"], 2, "seed"),
        (["demo", "--format", "yaml"], 2, "yaml"),
        (["demo", "--unknown"], 2, "unknown"),
        (["nonsense"], 2, "nonsense"),
        (["demo", "--output", "/dev/null/here"], 2, "pactune: `--output` must be a folder"),
    ],
)
def test_wrong_usage_is_one_message(arguments: list[str], status: int, message: str) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_with_a_word(tmp_path: Path) -> None:
    talkative = f"from pactune.results import callbacks; callbacks.LINE_SECONDS = 0; {MAIN}"
    process = subprocess.Popen(
        [sys.executable, "-c", talkative, "demo", "--output", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("demo: ")
    assert process.stderr.readline().startswith("decays 1/")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "pactune: interrupted before there was anything to compare"
    assert "Traceback" not in errors
