"""`pactune demo` as a user meets it: the table, the page, wrong usage, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from pactune.cli import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("demo")
    done = run("demo", "--outer-steps", "3", "--output", str(folder), "--format", "json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_the_page_stands_alone_and_has_every_figure(finished: tuple[Path, dict]) -> None:
    text = (finished[0] / "report.html").read_text(encoding="utf-8")
    assert text.count('class="plotly-graph-div"') == 4
    assert "src=" not in text.split("</script>", 1)[1]
    for words in ("plain training", "ζ = 0, last step", "Held-out score"):
        assert words in text


def test_the_numbers_are_accuracies_of_four_runs(finished: tuple[Path, dict]) -> None:
    runs = finished[1]["runs"]
    assert len(runs) == 4
    assert all(0 <= line["test_accuracy"] <= 1 and 0 <= line["valid_accuracy"] <= 1 for line in runs)
    assert runs[1]["step"] == 3
    assert "held-out rows" in finished[1]["verdict"]


def test_the_table_is_for_people(tmp_path: Path) -> None:
    done = run("demo", "--outer-steps", "1", "--output", str(tmp_path))
    assert done.returncode == 0
    assert "regularizer" in done.stdout
    assert str(tmp_path / "report.html") in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["demo", "--outer-steps", "0"], 2, "outer-steps"),
        (["demo", "--format", "yaml"], 2, "yaml"),
        (["demo", "--unknown"], 2, "unknown"),
        (["nonsense"], 2, "nonsense"),
        (["demo", "--output", "/dev/null/here"], 1, "pactune: "),
    ],
)
def test_wrong_usage_is_one_message(arguments: list[str], status: int, message: str) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_with_a_word(tmp_path: Path) -> None:
    talkative = (
        "from pactune.results import callbacks; callbacks.LINE_SECONDS = 0; from pactune.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", talkative, "demo", "--output", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("outer step 1/80")  # the first of twelve runs has begun
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "pactune: interrupted before there was anything to compare"
    assert "Traceback" not in errors
