"""A verdict says that tuning pays, that it does not, or that it is unclear, by the numbers beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch
from torch import nn

import pactune as pt
from pactune.report.runs import run_of, run_section
from pactune.report.sweep import shown_columns
from pactune.results.verdict import judge_held_out, judge_run
from pactune.tracking.journal import read_lines


class Run(NamedTuple):
    """The parts of a result that a verdict looks at."""

    rows: list[dict[str, Any]]
    plain_rows: list[dict[str, Any]]
    kept: dict[str, Any]


@pytest.mark.parametrize(
    ("gain", "error", "pays", "words"),
    [
        (0.02, 0.01, True, "tuning pays: "),
        (0.01, 0.01, None, "unclear whether tuning pays: "),
        (0.005, 0.01, None, "unclear whether tuning pays: "),
        (0.0, 0.01, False, "tuning does not pay: "),
        (-0.02, 0.01, False, "tuning does not pay: "),
        (0.02, 0.0, True, "tuning pays: "),
        (0.0, 0.0, False, "tuning does not pay: "),
    ],
)
def test_held_out_gain_against_its_error(gain: float, error: float, pays: bool | None, words: str) -> None:
    found = judge_held_out(gain, error)
    assert found.pays is pays
    assert found.verdict.startswith(words)
    assert f"{gain:.3f} ± {error:.3f}" in found.verdict


@pytest.mark.parametrize(
    ("column", "tuned", "plain", "pays"),
    [
        ("test_accuracy", 0.9, 0.8, True),
        ("test_accuracy", 0.8, 0.9, False),
        ("test_accuracy", 0.8, 0.8, False),
        ("test_risk", 0.3, 0.4, True),
        ("test_risk", 0.4, 0.3, False),
        ("test_risk", 0.3, 0.3, False),
    ],
)
def test_test_set_decides_where_there_is_one(column: str, tuned: float, plain: float, pays: bool) -> None:
    kept = {"objective": 1.0, column: tuned}
    found = judge_run(Run([kept], [{column: 9.0}, {column: plain}], kept))
    assert found.pays is pays
    assert ("does not pay" in found.verdict) is not pays
    assert f"{tuned:.4g}, plain training {plain:.4g}" in found.verdict


def test_accuracy_goes_before_risk() -> None:
    kept = {"test_accuracy": 0.9, "test_risk": 2.0}
    assert judge_run(Run([kept], [{"test_accuracy": 0.8, "test_risk": 1.0}], kept)).pays is True


@pytest.mark.parametrize(("last", "pays"), [(0.5, True), (1.0, False), (1.5, False)])
def test_without_a_test_set_the_objective_decides(last: float, pays: bool) -> None:
    first, kept = {"objective": 1.0}, {"objective": last}
    found = judge_run(Run([first, kept], [{}], kept))
    assert found.pays is pays
    assert ("no proof" in found.verdict) is pays


@pytest.mark.parametrize("run", [Run([], [{"test_risk": 1.0}], {}), Run([{"objective": 1.0}], [], {"objective": 1.0})])
def test_nothing_is_said_without_both_runs(run: Run) -> None:
    assert judge_run(run) == (None, "nothing to compare with plain training")


@pytest.mark.parametrize(("higher_is_better", "pays"), [(True, False), (False, True)])
def test_the_first_metric_decides_in_its_own_direction(higher_is_better: bool, pays: bool) -> None:
    kept = {"test_risk": 1.0, "test_error": 0.1, "test_accuracy": 0.9}
    found = judge_run(
        Run([kept], [{"test_risk": 2.0, "test_error": 0.2, "test_accuracy": 0.8}], kept),
        higher_is_better=higher_is_better,
    )
    assert found.pays is pays
    assert "test error 0.1, plain training 0.2" in found.verdict


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_risk_has_its_direction_whatever_the_metrics_say(higher_is_better: bool) -> None:
    kept = {"test_risk": 1.0}
    assert judge_run(Run([kept], [{"test_risk": 2.0}], kept), higher_is_better=higher_is_better).pays is True


def share_of_errors(model: nn.Module, batch: Any) -> dict[str, Any]:
    x, y = batch
    wrong = (model(x).argmax(1) != y).double().mean()
    return {"errors": wrong, "accuracy": 1 - wrong}


share_of_errors.higher_is_better = False  # type: ignore[attr-defined]


def share_of_hits(model: nn.Module, batch: Any) -> dict[str, Any]:
    found = share_of_errors(model, batch)
    return {"hits": found["accuracy"], "errors": found["errors"]}


def build(seed: int, metrics: Any) -> pt.Tuner:
    """Return a tuner whose labels are noise on the training side, so that tuning changes the number of errors."""
    torch.manual_seed(seed)
    x = torch.randn(60, 6)
    y = (x[:, 0] > 0).long()
    noisy = torch.randint(0, 2, (20,))
    model = nn.Linear(6, 2)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(
        model,
        hyper,
        train=(x[:20], noisy),
        valid=(x[20:40], y[20:40]),
        loss=nn.functional.cross_entropy,
        metrics=metrics,
    )
    outer = torch.optim.SGD(hyper.parameters(), lr=10.0)
    return pt.Tuner(
        problem, inner=pt.SGD(lr=0.5), inner_steps=5, outer=outer, objective=pt.PACBayes(zeta=0.0), seed=seed
    )


def fresh_rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(100 + seed))
    return x, (x[:, 0] > 0).long()


@pytest.mark.parametrize(("metrics", "name", "sign"), [(share_of_errors, "errors", -1), (share_of_hits, "hits", 1)])
def test_a_metric_of_the_user_decides(metrics: Any, name: str, sign: int, tmp_path: Path) -> None:
    """The same verdict from one run, a resumed run and a grid, on seeds of which some pay and some do not."""
    seeds = [0, 1, 2, 3]
    grid = pt.fit_grid(
        lambda seed: build(seed, metrics), {"seed": seeds}, outer_steps=6, test=lambda seed: fresh_rows(seed)
    )
    for seed, cell in zip(seeds, grid.results, strict=True):
        result = build(seed, metrics).fit(6, test=fresh_rows(seed))
        column = f"test_{name}"
        gain = sign * (result.kept[column] - result.plain_rows[-1][column])
        assert result.pays is (gain > 0)
        assert f"test {name} {result.kept[column]:.4g}" in result.verdict
        assert (cell.pays, cell.verdict) == (result.pays, result.verdict)
        folder = tmp_path / str(seed)
        build(seed, metrics).fit(3, test=fresh_rows(seed), run_dir=folder)
        resumed = build(seed, metrics).fit(6, test=fresh_rows(seed), run_dir=folder, resume=True)
        assert (resumed.pays, resumed.verdict) == (result.pays, result.verdict)
    assert {cell.pays for cell in grid.results} == {True, False}


def test_progress_and_pages_show_a_metric_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pactune.results.callbacks.LINE_SECONDS", 0.0)
    build(0, share_of_errors).fit(2, test=fresh_rows(0), run_dir=tmp_path / "run", progress=True)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("outer step 2/2: objective ")
    assert [words.rpartition(" ")[0] for words in line.split(", ")[1:]] == ["validation risk", "test errors"]
    section = run_section(run_of("run", read_lines(tmp_path / "run")))
    titles = ["errors", "accuracy", "risk", "objective and its parts", "gradients"]
    assert [figure.title for figure in section.figures] == titles


def test_a_sweep_shows_every_metric() -> None:
    titles = shown_columns(pd.DataFrame([{"seed": 0, "valid_errors": 0.1, "test_errors": 0.2, "valid_risk": 0.3}]))
    assert titles == {
        "test_errors": "test errors",
        "valid_errors": "validation errors",
        "valid_risk": "validation risk",
    }
    assert list(titles) == ["test_errors", "valid_errors", "valid_risk"]
