"""The conformance table of estimators that differentiate the risk only. Every row says what the estimator promises.

The judge is `check_hypergradient`, as in `test_conformance`. A new estimator of this kind joins by a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import pactune as pt
from pactune.hypergradient import Estimator
from tests.test_conformance import (
    DYNAMICS,
    ROWS,
    TOLERANCE,
    WAYS,
    Net,
    T,
    Value,
    Way,
    rows_of_all,
    scaled_loss,
    sharp_loss,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # θ_4 is far from stationary
CG = pt.ConjugateGradient(100)


class Case(NamedTuple):
    """An estimator and its promise: the derivative that it is, and what lies between it and that of J.

    Attributes:
        estimator: the estimator.
        promise: "exact", "exact in the limit", or the name of the term that is left out.
        checked: the derivative that `check_hypergradient` compares it with.
    """

    estimator: Estimator
    promise: str
    checked: str


def ridge(model: nn.Module) -> Tensor:
    return 0.3 * sum((p**2).sum() for p in model.parameters())


def ridge_loss(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return sharp_loss(model, batch, hyper) + ridge(model)


FROZEN = "of the trajectory whose training gradients are held fixed"
STATIONARY = "of the risk at the stationary point"
PENALISED = "of the penalised risk at its two points"
RISK_ESTIMATORS = {
    "first order": Case(pt.FirstOrder(), "without −η∇²R_T and −η∂²R_T/∂θ∂λ of the loss", FROZEN),
    "first order, k=1": Case(pt.FirstOrder(1), "the same, through one step", FROZEN),
    "first order, k=0": Case(pt.FirstOrder(0), "∂R_V/∂λ alone", FROZEN),
    "implicit": Case(pt.Implicit(CG), "exact in the limit of training, on the last mini-batch", STATIONARY),
    "implicit, all rows": Case(pt.Implicit(CG, batches="all"), "exact in the limit of training", STATIONARY),
    "implicit, fresh rows": Case(pt.Implicit(CG, batches=2, warm_start=True), "the same on 2 mini-batches", STATIONARY),
    "implicit, nystrom": Case(pt.Implicit(pt.Nystrom(100, 0.1)), "the same with a damped Hessian", STATIONARY),
    "value function gap": Case(
        pt.ValueFunctionGap(20.0, 3, alpha=0.1), "exact in the limit of γ, of its steps and of training", PENALISED
    ),
    "running implicit": Case(
        pt.RunningImplicit(alpha=0.1, steps=2), "exact in the limit of training and of outer steps", STATIONARY
    ),
}
BY_STEPS = ("rates", "decay and rates", "initial parameters")  # λ acts on the steps and not on R_T
ALL_WAYS = WAYS | {
    "loss with a minimum": Way(lambda model: Value(), {"train_loss": ridge_loss, "valid_loss": scaled_loss}),
}
# Near θ_4 the training risk of every other way falls to infinity, so there is no stationary point to be judged at.
WITH_MINIMUM = (
    "decay",
    "positive decay",
    "penalty without closed form",
    "loss with a minimum",
)


def blind(case: str, way: str) -> bool:
    """Return True if the estimator differentiates nothing through which one of the hyperparameters enters."""
    estimator = RISK_ESTIMATORS[case].estimator
    if estimator.stationary:
        return way in BY_STEPS
    if estimator.reach(T) == 0:
        return way not in ("both losses", "forward", "loss with a minimum")
    return way in ("training loss", "example weights") or (way == "initial parameters" and estimator.reach(T) < T)


def build(case: str, way: str, dynamics: str = "sgd", objective: Any = None, **settings: Any) -> pt.Tuner:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Net()
        hyper = ALL_WAYS[way].hyper(model)
    x, y = rows_of_all()
    model.double(), hyper.double()
    data = settings.pop("data", {"train": (x[:ROWS], y[:ROWS]), "valid": (x[ROWS:], y[ROWS:])})
    problem = pt.Problem(model, hyper, **data, batch_size=5, valid_batch_size=4, **ALL_WAYS[way].losses)
    defaults = {"inner_steps": T, "chains": 2, "restart": way == "initial parameters", "seed": 4}
    return pt.Tuner(
        problem,
        inner=DYNAMICS[dynamics],
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=objective or pt.ValidationRisk(),
        hypergradient=RISK_ESTIMATORS[case].estimator,
        **(defaults | settings),
    )


PAIRS = [(case, "sgd", way) for case in RISK_ESTIMATORS for way in ALL_WAYS]
PAIRS += [(case, dynamics, "decay") for case in ("first order", "first order, k=1") for dynamics in DYNAMICS]
PAIRS += [("first order", "adam", way) for way in WAYS]
PROXIMAL = ("l1", "elastic net", "prox without closed forms")
SMOOTH = [pair for pair in PAIRS if RISK_ESTIMATORS[pair[0]].estimator.takes_prox or pair[2] not in PROXIMAL]
SEEN = [pair for pair in SMOOTH if not blind(pair[0], pair[2])]


def judged(pair: tuple[str, str, str]) -> bool:
    """Return True if `check_hypergradient` finds the point at which it judges the estimator."""
    return pair[2] in WITH_MINIMUM or RISK_ESTIMATORS[pair[0]].checked != STATIONARY


@pytest.mark.parametrize("pair", [pair for pair in SEEN if judged(pair)], ids=", ".join)
def test_the_gradient_is_the_promised_one(pair: tuple[str, str, str]) -> None:
    case, dynamics, way = pair
    check = pt.check_hypergradient(build(case, way, dynamics), directions=1)
    assert check.error < TOLERANCE
    assert float(check.promised.norm()) > 1e-8


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if blind(pair[0], pair[2])], ids=", ".join)
def test_a_hyperparameter_that_has_no_gradient_is_an_error(pair: tuple[str, str, str]) -> None:
    with pytest.raises(pt.GradientError, match="identically zero"):
        build(pair[0], pair[2], pair[1]).hypergradient()


@pytest.mark.parametrize("case", [case for case in RISK_ESTIMATORS if case != "first order, k=0"])
def test_the_judge_sees_the_term_that_is_left_out(case: str) -> None:
    assert pt.check_hypergradient(build(case, "decay"), directions=1).truncation > 1e-3


@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("case", [case for case in RISK_ESTIMATORS if case != "first order, k=0"])
def test_the_gradient_over_folds_is_the_mean_over_separate_problems(case: str, engine: str) -> None:
    x, y = rows_of_all()
    whole = build(case, "decay", data={"data": (x, y), "folds": 3}, engine=engine, chains=1)
    parts = [(p.train, p.valid) for p in whole.problem.subproblems]
    whole.hypergradient()
    found = torch.cat([value.grad.reshape(-1) for value in whole.problem.hyper.parameters()])
    each = []
    for train, valid in parts:
        one = build(case, "decay", data={"train": train, "valid": valid}, engine="eager", chains=1)
        one.hypergradient()
        each.append(torch.cat([value.grad.reshape(-1) for value in one.problem.hyper.parameters()]))
    torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in RISK_ESTIMATORS if case != "first order, k=0"])
def test_a_regularizer_has_an_estimator_of_its_own(case: str) -> None:
    check = pt.check_hypergradient(build(case, "decay", objective=pt.PACBayes(0.6)), directions=1)
    assert check.error < TOLERANCE


@pytest.mark.parametrize("case", RISK_ESTIMATORS)
def test_the_regularizer_itself_is_refused(case: str) -> None:
    with pytest.raises(pt.SettingError, match="cannot differentiate the regularizer"):
        build(case, "decay", objective=pt.PACBayes(0.6), path_hypergradient=RISK_ESTIMATORS[case].estimator)


def test_every_public_estimator_of_the_risk_has_a_row() -> None:
    import pactune.hypergradient as room

    kinds = {getattr(room, name) for name in room.__all__}
    public = {
        kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Estimator) and kind is not Estimator
    }
    only_risk = {kind for kind in public if not kind.for_path}
    assert only_risk == {type(case.estimator) for case in RISK_ESTIMATORS.values()}
