"""The progress of a run on stderr: its stages, the parts that are done, and an estimate of the time left."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import pactune as pt
from pactune.results import callbacks
from pactune.results.callbacks import progress_for


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock whose time is the sum of a list."""
    seconds = [100.0]
    monkeypatch.setattr("pactune.results.callbacks.LINE_SECONDS", 0.0)
    monkeypatch.setattr("pactune.results.callbacks.time.monotonic", lambda: sum(seconds))
    return seconds


def advance(shown: callbacks.Progress, clock: list[float], *seconds: float, words: str = "") -> None:
    """Finish parts that take so many seconds."""
    for duration in seconds:
        clock.append(duration)
        shown.advance(words)


def test_lines_name_the_stage_and_estimate_the_time_left(clock: list[float], capsys: Any) -> None:
    with progress_for(True, total=4) as shown:
        shown.begin("decays", 4)
        advance(shown, clock, 2.0, 2.0, 2.0)
        shown.begin("tuning", 7)
        advance(shown, clock, 5.0, words="risk 1")
    assert capsys.readouterr().err.splitlines()[2:] == [
        "decays 3/4, about 2 s left",
        "tuning 4/10: risk 1, about 18 s left",
    ]


def test_the_first_part_which_records_the_steps_says_nothing_about_the_others(clock: list[float], capsys: Any) -> None:
    with progress_for(True, total=50) as shown:
        advance(shown, clock, 20.0, 1.0, 1.0, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "outer step 1/50",
        "outer step 2/50",
        "outer step 3/50, about 47 s left",
        "outer step 4/50, about 46 s left",
    ]


def test_the_last_part_leaves_no_time(clock: list[float], capsys: Any) -> None:
    with progress_for(True, total=4) as shown:
        advance(shown, clock, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()[2:]] == ["left", "4/4", "5/5"]


def test_long_times_are_in_minutes_and_hours(clock: list[float], capsys: Any) -> None:
    with progress_for(True, total=5) as shown:
        advance(shown, clock, 100.0, 100.0, 100.0, 14_950.0)
    *_, first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("about 3 min 20 s left")
    assert second.endswith("about 1 h 24 min left")


def test_steps_before_a_resumed_run_take_no_time(clock: list[float], capsys: Any) -> None:
    with progress_for(True, total=10) as shown:
        shown.on_resume(None, [{}] * 6)
        for seconds in (9.0, 3.0, 3.0):
            clock.append(seconds)
            shown.on_outer_step(None, {"objective": 0.5})
    assert [line.rpartition("0.5")[2] for line in capsys.readouterr().err.splitlines()] == ["", "", ", about 3 s left"]


def test_the_bar_shows_the_same(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_for(True, total=4) as shown:
        assert isinstance(shown, callbacks.ProgressBar)
        shown.begin("tuning", 4)
        advance(shown, clock, 2.0, 6.0, 6.0, words="risk 1")
        (task,) = shown.bar.tasks
    assert (task.fields["stage"], task.completed, task.total) == ("tuning", 3, 4)
    assert task.description == "about 6 s left, risk 1"


@pytest.mark.slow
def test_tune_counts_its_stages_to_the_end(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("pactune.results.callbacks.LINE_SECONDS", 0.0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    pt.tune(nn.Linear(4, 2), (x, (x[:, 0] > 0).long()), loss=functional.cross_entropy, progress=True)
    found = [re.match(r"([a-z ]+) (\d+)/(\d+)", line) for line in capsys.readouterr().err.splitlines()]
    lines = [(match[1], int(match[2]), int(match[3])) for match in found if match]
    assert list(dict.fromkeys(stage for stage, _, _ in lines)) == ["decays", "tuning", "last run"]
    assert [done for _, done, _ in lines] == list(range(1, len(lines) + 1))
    assert all(done < total for stage, done, total in lines if stage != "last run")
    assert lines[-1][1] == lines[-1][2] == len(lines)
