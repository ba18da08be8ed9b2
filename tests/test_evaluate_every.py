"""`fit(evaluate_every=n)`: at which outer steps the models are evaluated, and what copes with rows in between."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import pactune as pt
from pactune.results.plots import history_panels


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=generator, dtype=torch.float64)


class Counted:
    """Counts the rows that are evaluated."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        self.rows += len(batch[0])
        return {"error": (model(batch[0]) - batch[1]).abs().mean()}


def tuner(counted: Counted | None = None, **changes: Any) -> pt.Tuner:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    hyper = pt.WeightDecay(model, init=0.1).double()
    data = {"train": rows(20, 1), "valid": rows(12, 2)}
    problem = pt.Problem(model, hyper, loss=mse_loss, **data, metrics=counted)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    settings = {"inner": pt.SGD(0.05), "inner_steps": 3, "objective": pt.PACBayes(zeta=0.1), "engine": "eager"}
    return pt.Tuner(problem, outer=outer, **{**settings, **changes})


@pytest.mark.parametrize(("every", "evaluated"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (9, [5])])
def test_steps_that_are_evaluated(every: int, evaluated: list[int]) -> None:
    result = tuner().fit(5, evaluate_every=every, test=rows(6, 3))
    every_step = tuner().fit(5, test=rows(6, 3))
    for found, wanted in ((result.rows, every_step.rows), (result.plain_rows, every_step.plain_rows)):
        assert [row["outer_step"] for row in found] == [1, 2, 3, 4, 5]
        assert [row["outer_step"] for row in found if "valid_risk" in row] == evaluated
        for row, full in zip(found, wanted, strict=True):
            assert {name: value for name, value in full.items() if name in row and name != "seconds"} == {
                name: value for name, value in row.items() if name != "seconds"
            }
    assert result.pays is not None
    assert result.summary()
    assert [panel.title for panel in history_panels(result)][-2:] == ["objective and its parts", "gradients"]
    names = [name for name in every_step.history.columns if evaluated or name in result.rows[0]]
    assert list(result.history.columns) == names
    assert ("test" in result.verdict) == bool(evaluated)


def test_without_evaluation_no_rows_are_read() -> None:
    counted = Counted()
    own = tuner(counted)
    own.fit(1, evaluate_every=0)
    counted.rows = 0
    own.fit(5, evaluate_every=0)
    assert counted.rows == 0
    own.fit(5, evaluate_every=100)
    assert counted.rows == 2 * (20 + 12)  # the last step, tuned and plain


def test_a_run_that_converges_is_evaluated_at_its_end() -> None:
    result = tuner().fit(9, evaluate_every=100, tolerance=1e9)
    assert result.status == "converged"
    assert [row["outer_step"] for row in result.rows if "valid_risk" in row] == [1]


def test_plain_training_that_ends_early_is_evaluated_at_its_end() -> None:
    result = tuner().fit(5, evaluate_every=100, plain_steps=2, test=rows(6, 3))
    assert [row["outer_step"] for row in result.plain_rows if "test_risk" in row] == [2]
    assert "test risk" in result.verdict


def test_a_kept_step_without_evaluation_is_judged_by_the_objective() -> None:
    result = tuner().fit(5, evaluate_every=100, keep="best-objective", test=rows(6, 3))
    wanted = tuner().fit(5, keep="best-objective", test=rows(6, 3))
    assert result.kept_step == wanted.kept_step
    if "test_risk" not in result.kept:
        assert "J " in result.verdict


def test_a_resumed_run_may_evaluate_at_other_steps(tmp_path: Path) -> None:
    tuner().fit(2, evaluate_every=2, run_dir=tmp_path)
    result = tuner().fit(5, evaluate_every=3, run_dir=tmp_path, resume=True)
    assert [row["outer_step"] for row in result.rows if "valid_risk" in row] == [2, 3, 5]
    again = tuner().fit(5, evaluate_every=0, run_dir=tmp_path, resume=True)
    assert list(again.rows) == list(result.rows)
    result.save(tmp_path / "saved")
    assert pt.load_result(tmp_path / "saved").history.equals(result.history)


def test_a_grid_evaluates_its_cells_at_the_same_steps() -> None:
    build = lambda zeta: tuner(objective=pt.PACBayes(zeta=zeta), engine="traced")  # noqa: E731
    found = pt.fit_grid(build, {"zeta": [0.0, 0.1]}, outer_steps=4, evaluate_every=3).history
    assert found[found.valid_risk.notna()].outer_step.tolist() == [3, 4, 3, 4]


@pytest.mark.parametrize("wrong", [-1, 1.5, None, "all", True])
def test_a_wrong_number_is_refused(wrong: Any) -> None:
    with pytest.raises(pt.SettingError, match="`evaluate_every` must be ≥ 0, a whole number, got"):
        tuner().fit(1, evaluate_every=wrong)
