"""The range test: its curvature against the Hessian, and a rate at which training falls."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.engines import as_engine
from pactune.search.decays import with_decay
from pactune.search.learning_rate import (
    AVERAGED_LIMIT,
    LIMIT,
    SHARES,
    _falls,
    find_learning_rate,
    largest_curvature,
)
from pactune.stacking.runner import Runner

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)


def problem(x: Tensor = X, y: Tensor = Y, model: nn.Module | None = None, **changes: Any) -> pt.Problem:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(3, 1, dtype=torch.float64) if model is None else model
    return pt.Problem(model, with_decay(model, None, 0.0), data=(x, y), folds=3, **({"loss": F.mse_loss} | changes))


def found(given: pt.Problem, seed: int = 0) -> float:
    return find_learning_rate(given, partial(pt.SGD, momentum=0.9), Runner(as_engine("eager", given)), seed)


def test_the_curvature_is_the_largest_eigenvalue_of_the_hessian() -> None:
    """Ten power iterations from a random start; the gap of the eigenvalues 2.6 and 2.0 leaves less than one percent."""
    columns = torch.cat(
        [X * torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64), torch.ones(40, 1, dtype=torch.float64)], 1
    )
    wanted = float(torch.linalg.eigvalsh(2 * columns.T @ columns / 40)[-1])
    assert largest_curvature(problem(columns[:, :3])) == pytest.approx(wanted, rel=1e-3)


def test_dropout_does_not_look_like_curvature() -> None:
    """Every gradient has the same mask: the difference of two masks, divided by a small step, would be enormous."""
    plain, dropped = (nn.Sequential(nn.Dropout(p), nn.Linear(3, 1)).double() for p in (0.0, 0.2))
    dropped.load_state_dict(plain.state_dict())
    found = [largest_curvature(problem(model=model)) for model in (plain, dropped)]
    assert 0.3 < found[1] / found[0] < 3  # inputs are scaled by 1/0.8, and a fifth of them is 0


def test_the_rate_follows_the_scale_of_the_inputs() -> None:
    """Inputs that are 100 times as large have a curvature, and so a limit of the rate, 10⁴ times as large."""
    rates = [found(problem(scale * X, Y)) for scale in (1.0, 100.0)]
    assert 2e3 < rates[0] / rates[1] < 5e4  # a neighbour in the list of rates is 3 times away


def test_the_rate_is_at_most_the_share_of_the_limit() -> None:
    given = problem()
    rate, limit = found(given), LIMIT / largest_curvature(given)
    assert any(rate == pytest.approx(share * limit) for share in SHARES)


def test_training_falls_at_the_rate() -> None:
    given = problem()
    rate = found(given)
    tuner = pt.Tuner(
        given,
        inner=pt.SGD(rate, momentum=0.9),
        inner_steps=20,
        outer=torch.optim.SGD(given.hyper.parameters(), lr=0.0),
        objective=pt.ValidationRisk(),
    )
    before = given.evaluate(given.train).risk
    assert tuner.fit(3, progress=False).rows[-1]["train_risk"] < 0.5 * before


def test_modules_and_generator_are_untouched(rng_untouched: Any) -> None:
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1)).double()
    given = problem(model=model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found(given)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_same_seed_has_the_same_rate() -> None:
    assert found(problem(batch_size=8), seed=1) == found(problem(batch_size=8), seed=1)


def test_a_risk_that_cannot_fall_is_refused() -> None:
    def wrong(predictions: Tensor, targets: Tensor) -> Tensor:
        """The squared error with the gradient of its negative."""
        risk = F.mse_loss(predictions, targets)
        return 2 * risk.detach() - risk

    with pytest.raises(pt.SettingError, match=r"falls at no learning rate.*inner=pt.Adam"):
        found(problem(loss=wrong))


def test_a_model_at_a_minimum_has_the_largest_rate() -> None:
    """It may have been trained before."""
    model = nn.Linear(3, 1, dtype=torch.float64)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    ahead = copy.deepcopy(model)
    nn.init.ones_(ahead.bias)  # the same curvature
    rates = [found(problem(y=0 * Y, model=one)) for one in (model, ahead)]
    assert rates[0] >= rates[1] * (1 - 1e-3)


@pytest.mark.parametrize("shift", [0.0, 2.0, 20.0])
def test_a_negative_risk_falls_too(shift: float) -> None:
    assert found(problem(loss=lambda p, t: F.mse_loss(p, t) - shift)) > 0.3 * found(problem())


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ([3.0, 2.0, 1.0], True),
        ([3.0, 3.1, 1.0], True),
        ([3.0, 4.0, 1.0], False),
        ([3.0, 1.0, 1.2], False),
        ([3.0, 3.0], False),
        ([3.0, float("nan")], False),
        ([3.0, float("inf"), 1.0], False),
    ],
)
def test_a_path_falls_if_it_ends_lower_and_never_rises_much(path: list[float], wanted: bool) -> None:
    assert _falls(path) is wanted


def test_the_rate_of_an_average_may_be_larger() -> None:
    """Where iterates oscillate, their average falls steadily."""
    given = problem()

    def averaged(rate: float) -> pt.Averaged:
        return pt.Averaged(pt.SGD(rate, momentum=0.9), beta=0.995)

    rate = find_learning_rate(given, averaged, Runner(as_engine("eager", given)), 0)
    assert any(rate == pytest.approx(share * AVERAGED_LIMIT / largest_curvature(given)) for share in SHARES)
    assert rate > found(given)
