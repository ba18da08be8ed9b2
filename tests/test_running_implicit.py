"""`RunningImplicit` keeps the solution of its linear system: the closed form of every outer step, and the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pactune as pt
from tests.test_implicit_options import BATCH, EXACT, Curved, StopAt, StopError, gradient, rows, tuner
from tests.test_quadratic import LR, Setup, relative

ALPHA = 0.15
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("damping", [0.0, 0.4])
@pytest.mark.parametrize("steps", [1, 3])
def test_every_round_has_the_closed_form(steps: int, damping: float) -> None:
    """v ← v − α((∇²R_T + damping)v − ∇R_V) along the rounds of one run, at a λ that moves."""
    estimator = pt.RunningImplicit(alpha=ALPHA, steps=steps, damping=damping)
    setup = Setup(pt.SGD(LR), zeta=None, steps=2, hypergradient=estimator)
    v = torch.zeros_like(setup.start)
    for _ in range(5):
        decay = setup.hyper.values["theta"].detach().clone()
        _, found, theta = setup.run()
        slope = setup.quadratic.B @ theta - setup.quadratic.c
        hessian = setup.quadratic.A + torch.diag(decay + damping)
        for _ in range(steps):
            v = v - ALPHA * (hessian @ v - slope)
        assert relative(found, -theta * v) < 1e-10
        setup.tuner.outer_run.settings.outer.step()


def test_it_tends_to_the_implicit_gradient() -> None:
    setup = Setup(pt.SGD(LR), zeta=None, steps=3, hypergradient=pt.RunningImplicit(alpha=ALPHA))
    wanted = setup.quadratic.implicit_gradient(setup.decay)
    errors = [relative(setup.run()[1], wanted) for _ in range(250)]
    assert errors[0] > 0.1
    assert errors[-1] < 1e-8


def test_the_residual_is_a_column() -> None:
    setup = Setup(pt.SGD(LR), zeta=None, steps=3, hypergradient=pt.RunningImplicit(alpha=ALPHA))
    found = [row["implicit_residual"] for row in setup.tuner.fit(30, progress=False, plain_steps=0).rows]
    assert found[0] == 1.0
    assert found[-1] < 0.2


def test_alpha_is_the_learning_rate_by_default() -> None:
    own, default = (
        Setup(pt.SGD(LR), zeta=None, hypergradient=pt.RunningImplicit(alpha=alpha)).run()[1] for alpha in (LR, None)
    )
    assert torch.equal(own, default)


def test_fresh_mini_batches_find_the_gradient_of_all_rows() -> None:
    """At a fixed λ, the mean over an epoch of mini-batches of the stationary noise is near the gradient of all rows.

    α = 0.005 on mini-batches of 6 of 24 rows: the noise of v is of the order √α, about 7 % before the mean.
    """
    exact = tuner(pt.Implicit(EXACT, batches="all"), Curved(0.1, 0.2, 0.3), steps=400, lr=0.02)
    wanted = gradient(exact)
    found = tuner(pt.RunningImplicit(alpha=0.005), Curved(0.1, 0.2, 0.3), steps=1, lr=0.005, outer_lr=0.0)
    last = torch.stack([gradient(found) for _ in range(1500)])[-100:]
    assert float((last.mean(0) - wanted).norm() / wanted.norm()) < 0.1


CASES: dict[str, dict[str, Any]] = {
    "one chain": {},
    "chains": {"chains": 2},
    "folds": {"data": {"data": rows(0), "folds": 3, "batch_size": BATCH}},
    "tasks": {"data": {"tasks": [(rows(0), rows(1)), (rows(2), rows(3))]}},
    "traced": {"engine": "traced"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_same_bits(case: str, tmp_path: Path) -> None:
    def build() -> pt.Tuner:
        return tuner(pt.RunningImplicit(alpha=0.05), Curved(0.1, 0.2, 0.3), **CASES[case])

    def values(one: pt.Tuner) -> Tensor:
        return one.problem.hyper.values.detach().clone()

    whole, cold = build(), build()
    whole.fit(4, progress=False)
    with pytest.raises(StopError):
        cold.fit(4, progress=False, run_dir=tmp_path, callbacks=[StopAt(3)])
    again = build()
    again.fit(4, progress=False, run_dir=tmp_path, resume=True)
    assert torch.equal(values(whole), values(again))
    forgetful = build()
    forgetful.fit(2, progress=False)
    for part in forgetful.outer_run.chains.all():
        part.memory = None
    forgetful.fit(2, progress=False)
    assert not torch.equal(values(whole), values(forgetful))


@pytest.mark.parametrize("settings", [{}, {"steps": 3}, {"damping": 0.2, "batches": "all"}, {"batches": None}], ids=str)
def test_the_check_judges_its_first_outer_step(settings: Any) -> None:
    found = tuner(pt.RunningImplicit(alpha=0.05, **settings), Curved(0.1, 0.2, 0.3))
    check = pt.check_hypergradient(found, directions=2)
    assert check.passed
    assert check.truncation > 1e-3


def test_drawn_tasks_are_refused() -> None:
    data = {"tasks": lambda generator: (rows(0), rows(1)), "tasks_per_step": 2}
    with pytest.raises(pt.SettingError, match="draws other tasks"):
        tuner(pt.RunningImplicit(), Curved(0.1, 0.2, 0.3), data=data, restart=True)


def test_learning_rates_are_refused() -> None:
    found = tuner(pt.RunningImplicit(), Curved(0.1, 0.2, 0.3))
    hyper = pt.LearningRates(found.problem.model)
    with pytest.raises(pt.GradientError, match="identically zero"):
        tuner(pt.RunningImplicit(), hyper).fit(1, progress=False)
