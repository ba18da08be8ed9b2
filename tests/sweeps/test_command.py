"""`pactune sweep` with a Ray of its own: Ctrl-C, workers that die, cells that fail, and the same command again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pactune.sweeps import Spec, read_spec
from pactune.tracking import read_journal

pytest.importorskip("ray", reason="ray is not installed: pip install 'pactune[sweep]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL"),
]

COMMAND = [sys.executable, "-c", "from pactune.cli import main; main()"]
PATIENCE = 180.0  # seconds, for machines with much else to do
SPEC = """
build = "study.py:build"

[grid]
model = ["slow", "killed once", "killed always", "diverging", "unknown"]

[fit]
outer_steps = 8
test = "study.py:test_set"

[resources]
retries = 1
"""
STUDY = '''
import os, signal, time
from pathlib import Path

import torch
from torch import nn

import pactune as pt
from beside import SEED

HERE = Path(__file__).parent
print("the user's code may print")


def data(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def test_set():
    return data(7, 3)


def killer(model, always):
    """A loss that kills its process when three outer steps are done, once or always."""
    mark, found = HERE / "mark", f"out/cells/model={model.replace(' ', '_')}*/checkpoint-00000003*"

    def loss(output, target):
        if any(HERE.glob(found)) and (always or not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(output, target)

    return loss


def slow(output, target):
    time.sleep(SLEEP)
    return nn.functional.cross_entropy(output, target)


SLEEP = 0.02
LOSSES = {
    "slow": slow,
    "killed once": killer("killed once", always=False),
    "killed always": killer("killed always", always=True),
    "diverging": lambda output, target: nn.functional.cross_entropy(output.exp().exp(), target),
}


def build(model):
    torch.manual_seed(SEED)
    net = nn.Linear(4, 3)
    hyper = pt.WeightDecay(net)
    problem = pt.Problem(net, hyper, train=data(12, 1), valid=data(10, 2), loss=LOSSES[model])
    inner = pt.SGD(lr=1e3 if model == "diverging" else 0.1)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=inner, inner_steps=2, outer=outer, objective=pt.PACBayes(0.05))
'''


def start(folder: Path) -> subprocess.Popen[str]:
    command = [*COMMAND, "sweep", str(folder / "spec.toml"), "--output", str(folder / "out"), "--format", "json"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def by_model(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["model"]: cell for cell in document["cells"]}


def test_stopped_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, because each start of Ray takes seconds."""
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "study.py").write_text(STUDY)
    (tmp_path / "beside.py").write_text("SEED = 4\n")
    check_interrupted(*interrupt(tmp_path))
    process = start(tmp_path)
    out, err = process.communicate(timeout=2 * PATIENCE)
    document = json.loads(out)
    check_failures(process.returncode, document, err)
    monkeypatch.syspath_prepend(str(tmp_path))
    for model in ("slow", "killed once"):
        check_history(read_spec(tmp_path / "spec.toml"), by_model(document)[model])
    check_report(document)


def interrupt(folder: Path) -> tuple[int, dict[str, Any], str]:
    """Start the command, and press Ctrl-C when the first outer step is done."""
    process, journal = start(folder), folder / "out" / "cells" / "model=slow" / "journal.jsonl"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (journal.exists() and '"outer_step": 1' in journal.read_text()) or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, json.loads(out), err


def check_interrupted(status: int, document: dict[str, Any], err: str) -> None:
    assert status == 130
    assert document["status"] == "interrupted"
    assert by_model(document)["slow"]["status"] == "interrupted"
    assert "the same command goes on" in err
    assert "Traceback" not in err


def check_failures(status: int, document: dict[str, Any], err: str) -> None:
    cells = by_model(document)
    assert status == 1
    assert {name: cell["status"] for name, cell in cells.items()} == {
        "slow": "completed",
        "killed once": "completed",
        "killed always": "failed",
        "diverging": "failed",
        "unknown": "failed",
    }
    assert "WorkerCrashedError" in cells["killed always"]["error"]
    assert "DivergenceError" in cells["diverging"]["error"]
    assert "KeyError: 'unknown'" in cells["unknown"]["error"]
    assert "3 of 5 cells failed" in err
    assert "model=unknown: KeyError" in err
    assert "Traceback" not in err
    assert "in build" in (Path(cells["unknown"]["folder"]) / "error.txt").read_text()


def check_history(asked: Spec, cell: dict[str, Any]) -> None:
    """A cell that was stopped or killed has the history of a run that was not."""
    asked.build.__globals__["SLEEP"] = 0
    plain = asked.build(cell["model"]).fit(8, test=asked.settings["test"], progress=False)
    lines = read_journal(cell["folder"])
    rows = [line for line in lines if line["kind"] == "row"]
    assert any(line["kind"] == "resume" for line in lines)
    for name in ("outer_step", "objective", "regularizer", "hypergradient_norm", "test_risk"):
        assert [row[name] for row in rows] == [row[name] for row in plain.rows]


def check_report(document: dict[str, Any]) -> None:
    text = Path(document["report"]).read_text(encoding="utf-8")
    assert "src=" not in text
    for words in ("5 cells", "KeyError", "DivergenceError", "plain"):
        assert words in text
    assert (Path(document["folder"]) / "history.csv").read_text().startswith("model,outer_step,")
