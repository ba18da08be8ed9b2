"""`ValueFunctionGap` on quadratics in closed form, in its limits, and with losses that have one derivative only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from tests.test_first_order import Once, made
from tests.test_first_order import rows as once_rows
from tests.test_implicit_options import BATCH, Curved, StopAt, StopError, dense_gradient, gradient, rows, tuner
from tests.test_quadratic import LONG, LR, SIZE, Setup, relative

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ALPHA = 0.15


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("steps", [1, 4])
def test_every_round_has_the_closed_form(steps: int, warm: bool) -> None:
    """Two sequences of gradient steps from θ_T, and ½(θ_γ² − φ²) as the λ-derivative of the penalty ½Σλθ²."""
    gamma = 7.0
    estimator = pt.ValueFunctionGap(gamma, steps, alpha=ALPHA, warm_start=warm)
    setup = Setup(pt.SGD(LR), zeta=None, steps=2, hypergradient=estimator)
    q, offset = setup.quadratic, torch.zeros(SIZE, dtype=torch.float64)
    for _ in range(3):
        decay = setup.hyper.values["theta"].detach().clone()
        _, found, theta = setup.run()
        upper, lower, hessian = theta + offset / gamma, theta, q.A + torch.diag(decay)
        for _ in range(steps):
            upper = upper - ALPHA * (hessian @ upper - q.b + (q.B @ upper - q.c) / gamma)
            lower = lower - ALPHA * (hessian @ lower - q.b)
        assert relative(found, gamma * (upper**2 - lower**2) / 2) < 1e-10
        offset = gamma * (upper - lower) if warm else offset
        setup.tuner.outer_run.settings.outer.step()


def estimate(gamma: float, steps: int) -> torch.Tensor:
    estimator = pt.ValueFunctionGap(gamma, steps, alpha=ALPHA)
    return Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=estimator).run()[1]


def test_a_large_gamma_is_the_neumann_series() -> None:
    solver = pt.Implicit(pt.Neumann(3, alpha=ALPHA))
    series = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=solver).run()[1]
    assert relative(estimate(1e6, 4), series) < 1e-5


def test_the_bias_is_of_the_order_of_one_over_gamma() -> None:
    setup = Setup(pt.SGD(LR), steps=LONG, zeta=None, hypergradient=pt.Truncated(1))
    wanted = setup.quadratic.implicit_gradient(setup.decay)
    errors = [relative(estimate(gamma, 400), wanted) for gamma in (1e2, 1e3, 1e4)]
    assert errors[0] < 0.1
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.2)


def test_a_warm_start_converges_with_one_step_per_outer_step() -> None:
    estimator = pt.ValueFunctionGap(1e5, 1, alpha=ALPHA, warm_start=True)
    setup = Setup(pt.SGD(LR), steps=3, zeta=None, hypergradient=estimator)
    wanted = setup.quadratic.implicit_gradient(setup.decay)
    errors = [relative(setup.run()[1], wanted) for _ in range(250)]
    assert errors[0] > 0.1
    assert errors[-1] < 1e-4


def test_all_rows_have_the_implicit_gradient() -> None:
    found = tuner(pt.ValueFunctionGap(1e5, 400, alpha=0.1, batches="all"), steps=400, lr=0.02)
    assert relative(gradient(found), dense_gradient(found)) < 0.05


def test_no_second_derivative_is_needed() -> None:
    model = made(Once)
    hyper = pt.ExampleWeights(12).double()
    problem = pt.Problem(model, hyper, train=once_rows(0), valid=once_rows(1), loss=F.mse_loss)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.ValueFunctionGap(1e3, 3)}
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    found = pt.Tuner(problem, inner=pt.SGD(0.02), inner_steps=4, outer=outer, **settings)
    assert "value_gap" in found.fit(2, progress=False).rows[0]
    found.hypergradient()
    assert bool((hyper.logits.grad != 0).all())
    settings["hypergradient"] = pt.Implicit(pt.Neumann(2))
    with pytest.raises(pt.GradientError, match="no second derivative"):
        pt.Tuner(problem, inner=pt.SGD(0.02), inner_steps=4, outer=outer, **settings).hypergradient()


CASES: dict[str, dict[str, Any]] = {
    "one chain": {},
    "chains": {"chains": 2},
    "folds": {"data": {"data": rows(0), "folds": 3, "batch_size": BATCH}},
    "tasks": {"data": {"tasks": [(rows(0), rows(1)), (rows(2), rows(3))]}},
    "traced": {"engine": "traced"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_same_bits(case: str, tmp_path: Path) -> None:
    estimator = pt.ValueFunctionGap(10.0, 2, alpha=0.05, batches=2, warm_start=True)
    whole, first, again = (tuner(estimator, Curved(0.1, 0.2, 0.3), **CASES[case]) for _ in range(3))
    whole.fit(4, progress=False)
    with pytest.raises(StopError):
        first.fit(4, progress=False, run_dir=tmp_path, callbacks=[StopAt(3)])
    again.fit(4, progress=False, run_dir=tmp_path, resume=True)
    assert torch.equal(whole.problem.hyper.values, again.problem.hyper.values)


def test_a_lost_factor_is_seen_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from pactune.hypergradient import value_gap

    found = tuner(pt.ValueFunctionGap(10.0, 2), Curved(0.1, 0.2, 0.3))
    assert pt.check_hypergradient(found, directions=1).passed
    scale = value_gap.scale
    monkeypatch.setattr(value_gap, "scale", lambda factor, tree: scale(1.001 * factor, tree))
    assert pt.check_hypergradient(found, directions=1).outcome == "failed"


@pytest.mark.parametrize("settings", [{"gamma": 0.0}, {"steps": 0}, {"alpha": -1.0}, {"batches": "some"}], ids=str)
def test_settings_are_checked(settings: Any) -> None:
    with pytest.raises(pt.SettingError, match="must be"):
        pt.ValueFunctionGap(**({"gamma": 1.0, "steps": 1} | settings))
