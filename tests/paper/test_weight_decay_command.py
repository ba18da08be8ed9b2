"""The paper's weight-decay studies in their quick forms, which share their runs: folders, figures, what they show."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import typer

from pactune.cli import main
from pactune.paper.commands.options import numbers
from pactune.paper.commands.weight_decay import COMMANDS
from pactune.paper.weight_decay.records import read_studies
from pactune.paper.weight_decay.rules import summarise

FIGURES = {
    "weight-decay": ("test-accuracy", "validation-accuracy", "test-loss", "validation-loss", "regularizer-y"),
    "table": ("test-accuracy", "validation-accuracy"),
    "correlation": ("generalisation-error",),
    "scan": ("test-loss-against-zeta", "test-accuracy-against-zeta"),
    "truncation": ("regularizer-y-per-outer-step", "running-value-y"),
    "restart": ("test-accuracy", "validation-accuracy"),
}


def call(*arguments):
    """Run the command line in this process; return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pactune", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder for all studies, and a data folder without files."""
    folder = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACTUNE_DATA", str(folder / "no-data"))
        yield folder


def quick(home, item, capsys):
    """Run an item; return its study and what was printed."""
    assert call("reproduce", item, "--quick", "--output", home / "runs", "--format", "json") == 0
    printed = capsys.readouterr()
    assert "no files of mnist; --quick takes scikit-learn's digits" in printed.err
    assert f"report: {home / 'runs' / 'report.html'}" in printed.err
    (study,) = [found for found in read_studies(home / "runs") if found.item == item]
    assert study.finished == study.asked > 0
    assert "digits (scikit-learn, enlarged to 28 × 28)" in (home / "runs" / "report.html").read_text()
    for name in FIGURES[item]:
        assert (home / "runs" / study.name / f"linear-digits-{name}.png").stat().st_size > 8_000
        assert (home / "runs" / study.name / f"linear-digits-{name}.pdf").read_bytes().startswith(b"%PDF")
    return study, json.loads(printed.out)


def test_weight_decay_shows_the_effect(home, capsys):
    """Bare validation risk overfits 50 images and loses at least ten points; Eq. 5 loses less than three."""
    study, printed = quick(home, "weight-decay", capsys)
    found = summarise(study)
    zero, tuned, oracle = (found.interval(method)["mean"] for method in ("zero", "regularized", "oracle"))
    assert oracle - zero > 0.1
    assert oracle - tuned < 0.03
    assert [table["rows"][0][0] for part in printed for table in part["tables"]] == ["plain training, λ = 0"]


def test_table_is_over_draws(home, capsys):
    study, printed = quick(home, "table", capsys)
    assert {run.cell["draw"] for run in study.records} == {0, 1}
    rows = {row[0]: row[1] for table in printed[0]["tables"] for row in table["rows"]}
    assert rows["Eq. 5 − ζ = 0"].endswith("4 of 4")
    assert rows['ζ = "auto"'] == "not run"


def test_correlation_is_positive(home, capsys):
    """The paper's claim, here over four ζ and two starts."""
    _, printed = quick(home, "correlation", capsys)
    assert float(printed[0]["tables"][0]["rows"][0][2]) > 0.8


def test_scan_shares_its_runs_with_correlation(home, capsys):
    quick(home, "correlation", capsys)
    before = {path: path.read_bytes() for path in (home / "runs" / "cells").rglob("journal.jsonl")}
    _, printed = quick(home, "scan", capsys)
    assert {path: path.read_bytes() for path in (home / "runs" / "cells").rglob("journal.jsonl")} == before
    losses = [float(row[1].partition(" ")[0]) for row in printed[0]["tables"][0]["rows"]]
    assert losses == sorted(losses, reverse=True), "in this range a larger ζ has the smaller test loss"


def test_truncation_hardly_matters(home, capsys):
    """The paper's claim: the running value has minimal dependence on the truncation."""
    _, printed = quick(home, "truncation", capsys)
    rows = printed[0]["tables"][0]["rows"]
    assert [row[0] for row in rows] == ["K = 0", "K = 1", "W = 10", "K = ∞"]
    values = [float(row[2]) for row in rows]
    assert max(values) / min(values) < 1.1


def test_restart_does_not_overfit(home, capsys):
    """The paper's remark: with θ_0 set back, ζ = 0 no longer overfits for certain pairs."""
    study, _ = quick(home, "restart", capsys)
    last = {
        start: [r.rows[-1]["test_accuracy"] for r in study.where(start=start, zeta=0.0)] for start in ("kept", "same")
    }
    assert min(last["same"]) > max(last["kept"]) + 0.1


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--model", "vgg"], 2, "vgg"),
        (["--seeds", "-1"], 2, "greater than or equal"),
        (["--auto"], 2, "auto"),
        (["--draws", "a-b", "--quick"], 2, "numbers and ranges"),
        (["--device", "tpu", "--quick"], 2, "tpu cannot be used"),
        (["--zeta", "-1"], 2, "greater than or equal"),
    ],
)
def test_wrong_arguments(home, capsys, arguments, status, words):
    assert call("reproduce", "weight-decay", "--output", home / "wrong", *arguments) == status
    assert words in capsys.readouterr().err
    assert not (home / "wrong").exists()


def test_missing_data_are_an_error_without_quick(home, capsys, monkeypatch):
    from pactune.paper import downloads

    monkeypatch.setattr(downloads.urllib.request, "urlopen", _offline)
    assert call("reproduce", "weight-decay", "--output", home / "offline") == 2
    err = capsys.readouterr().err
    assert "train-images-idx3-ubyte" in err
    assert str(home / "no-data" / "mnist") in err


def _offline(*_, **__):
    raise OSError("network is unreachable")


def test_numbers():
    assert numbers("100-102, 7,7") == (100, 101, 102, 7)
    with pytest.raises(typer.BadParameter, match="smaller to the larger"):
        numbers("5-3")


def test_every_command_has_its_options():
    assert [command.name for command in COMMANDS] == list(FIGURES)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupted_command_goes_on(home, tmp_path):
    """Ctrl-C in the middle of a run: status 130, and the same command finishes what was begun."""
    code = "import sys; sys.argv[0] = 'pactune'; from pactune.cli import main; main()"
    command = [sys.executable, "-c", code, "reproduce", "weight-decay", "--quick", "--seeds", "1"]
    command += ["--outer-steps", "40", "--output", str(tmp_path)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that started the tests in the background makes all its children ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not any('"row"' in path.read_text() for path in tmp_path.rglob("cells/*/*/journal.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; the same command goes on where it stopped" in err
    assert "Traceback" not in err
    (part,) = read_studies(tmp_path)
    done = len(part.records[0].rows)
    assert 0 < done < 40
    assert call("reproduce", "weight-decay", "--quick", "--seeds", 1, "--outer-steps", 40, "--output", tmp_path) == 0
    (whole,) = read_studies(tmp_path)
    assert whole.finished == 2
    assert whole.records[0].rows[:done] == part.records[0].rows, "what was done is kept"
