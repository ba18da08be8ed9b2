"""`check_hypergradient` judges right gradients right and wrong ones wrong, with kinks and with `Implicit` too."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.gradient_check.differences import derivative
from pactune.trees import Params

ROWS = 300  # many kinks: with seed 2 some lie within the usual step


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def pool_2d(x: Tensor) -> Tensor:
    return F.max_pool2d(x.reshape(-1, 1, 4, 4), 2).flatten(1).repeat(1, 4)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky relu": F.leaky_relu,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "max_pool1d": lambda x: F.max_pool1d(x[:, None], 2)[:, 0].repeat(1, 2),
    "max_pool2d": pool_2d,
}


class WrongDecay(pt.WeightDecay):
    """A decay whose closed-form derivative has lost 1 %."""

    def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
        return {name: 0.99 * value for name, value in super().penalty_vjp(params, cotangent).items()}


class WrongGradient(pt.WeightDecay):
    """A decay that states another gradient than that of its penalty."""

    def penalty_gradient(self, params: Params) -> Params:
        return {name: 1.01 * value for name, value in super().penalty_gradient(params).items()}


def data(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, 6, generator=generator), torch.randint(0, 3, (ROWS,), generator=generator)


def tuner(activation: str | None, *, decay: Any = pt.WeightDecay, seed: int = 0, **settings: Any) -> pt.Tuner:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden = [] if activation is None else [nn.Linear(6, 16), Apply(ACTIVATIONS[activation])]
        model = nn.Sequential(*hidden, nn.Linear(6 if activation is None else 16, 3))
    hyper = decay(model, init=0.1)
    problem = pt.Problem(model, hyper, train=data(2 * seed), valid=data(2 * seed + 1), loss=F.cross_entropy)
    settings = {
        "inner": pt.SGD(0.3, momentum=0.5),
        "inner_steps": 5,
        "objective": pt.PACBayes(0.1),
        "hypergradient": pt.Truncated(5),
        "path_hypergradient": pt.Truncated(1),
    } | settings
    return pt.Tuner(problem, outer=torch.optim.SGD(hyper.parameters(), lr=0.1), **settings)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_right_gradient_passes_with_kinks(activation: str) -> None:
    for seed in (0, 2):
        check = pt.check_hypergradient(tuner(activation, seed=seed), directions=1)
        assert check.outcome == "passed", check


@pytest.mark.parametrize("activation", ["relu", "max_pool2d"])
def test_a_wrong_gradient_fails_with_kinks(activation: str) -> None:
    check = pt.check_hypergradient(tuner(activation, decay=WrongDecay), directions=1)
    assert check.outcome == "failed", check


def hinge(scores: Tensor, target: Tensor) -> Tensor:
    right = scores.gather(1, target[:, None])
    return F.relu(1 + scores - right).sum(1).mean() - 1


def test_hinge_loss() -> None:
    given = tuner("relu")
    problem = pt.Problem(given.problem.model, given.problem.hyper, train=data(0), valid=data(1), loss=hinge)
    twin = pt.Tuner(
        problem, inner=given.inner, inner_steps=given.inner_steps, outer=given.outer, objective=pt.PACBayes("theory")
    )
    assert pt.check_hypergradient(twin, directions=1).outcome == "passed"


# One number at a time: a kink or a jump near 0, at 0, and none


@pytest.mark.parametrize("place", [1e-5, 3e-6, 1.5e-6, -1e-5])
@pytest.mark.parametrize("jump", [0.0, 1.0])
def test_a_kink_beside_the_point_is_stepped_around(place: float, jump: float) -> None:
    def function(s: float) -> Tensor:
        x = torch.tensor(s, dtype=torch.float64)
        return (3 * x).sin() + 0.5 * (x - place).abs() + jump * (x > place)

    expected = 3 - 0.5 * math.copysign(1.0, place)
    assert derivative(function, step=2e-5, scale=0.0).value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("function", [torch.abs, torch.relu, torch.sign, lambda x: x.abs().sqrt()])
def test_a_kink_at_the_point_has_no_derivative(function: Callable[[Tensor], Tensor]) -> None:
    found = derivative(lambda s: 1 + function(torch.tensor(s, dtype=torch.float64)), step=2e-5, scale=0.0)
    assert math.isnan(found.value)


class AbsRate(nn.Module):
    """A penalty with |λ| at λ = 0: a kink at the very point, in every direction."""

    def __init__(self, model: nn.Module, init: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def penalty(self, params: Params) -> Tensor:
        return 0.5 * self.value.abs() * torch.stack([(p**2).sum() for p in params.values()]).sum()


def test_a_kink_at_lambda_itself_is_inconclusive() -> None:
    check = pt.check_hypergradient(tuner(None, decay=AbsRate), directions=2)
    assert check.outcome == "inconclusive"
    assert not check.passed
    assert check.kinks == 6


# Implicit

SOLVERS = {
    "conjugate gradients": pt.ConjugateGradient(100),
    "damped": pt.ConjugateGradient(100, damping=0.1),
    "series": pt.Neumann(3),
    "series of its own step": pt.Neumann(3, alpha=0.1),
    "all columns": pt.Nystrom(100, damping=0.1),
    "identity": pt.Identity(),
}


def implicit(solver: Any, steps: int = 5, **settings: Any) -> pt.Tuner:
    return tuner(None, hypergradient=pt.Implicit(solver), inner=pt.SGD(0.3), inner_steps=steps, **settings)


@pytest.mark.parametrize("name", SOLVERS)
def test_implicit_is_judged_at_a_stationary_point(name: str) -> None:
    check = pt.check_hypergradient(implicit(SOLVERS[name]), directions=1)
    assert check.outcome == "passed", check
    assert check.train_gradient_norm > 1e-3
    assert check.stationary_distance > 1e-2


def test_implicit_is_told_how_far_from_stationary_it_is() -> None:
    solver, risk = SOLVERS["conjugate gradients"], pt.ValidationRisk()
    far, near = (pt.check_hypergradient(implicit(solver, t, objective=risk), directions=1) for t in (5, 150))
    assert near.stationary_distance < 0.01 * far.stationary_distance
    assert near.train_gradient_norm < 0.01 * far.train_gradient_norm
    assert near.truncation < 0.1 * far.truncation


@pytest.mark.parametrize("name", ["conjugate gradients", "series"])
def test_a_wrong_implicit_gradient_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = type(SOLVERS[name]).solve

    def wrong(*args: Any) -> Any:
        found = solve(*args)
        return found._replace(value={n: 1.001 * v for n, v in found.value.items()})

    monkeypatch.setattr(type(SOLVERS[name]), "solve", wrong)
    assert pt.check_hypergradient(implicit(SOLVERS[name]), directions=1).outcome == "failed"


def test_a_solve_that_stops_too_early_fails() -> None:
    assert pt.check_hypergradient(implicit(pt.ConjugateGradient(1)), directions=1).outcome == "failed"


def test_training_without_a_stationary_point_is_inconclusive() -> None:
    given = implicit(pt.Neumann(3), objective=pt.ValidationRisk())

    def falling(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
        return model(batch[0]).mean()

    hyper = pt.WeightDecay(given.problem.model, init=0.0)
    problem = pt.Problem(
        given.problem.model, hyper, train=data(0), valid=data(1), train_loss=falling, valid_loss=falling
    )
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    found = pt.check_hypergradient(
        pt.Tuner(
            problem,
            inner=pt.SGD(0.1),
            inner_steps=3,
            outer=outer,
            objective=pt.ValidationRisk(),
            hypergradient=pt.Implicit(pt.Neumann(3)),
        ),
        directions=1,
    )
    assert found.outcome == "inconclusive"
    assert math.isnan(found.stationary_distance)
    assert found.train_gradient_norm > 0


# Optimizers of torch.optim: the gradient step stands in


@pytest.mark.parametrize("decay", [pt.WeightDecay, WrongDecay])
def test_an_optimizer_of_torch_is_judged_by_the_step_in_its_place(decay: Any) -> None:
    inner = functools.partial(torch.optim.RMSprop, lr=1e-2)
    settings = {"hypergradient": pt.Truncated(1), "path_hypergradient": pt.Truncated(0)}
    check = pt.check_hypergradient(tuner(None, inner=inner, decay=decay, **settings), directions=1)
    assert check.outcome == ("passed" if decay is pt.WeightDecay else "failed"), check


def test_a_wrong_gradient_of_a_penalty_is_named() -> None:
    with pytest.raises(pt.GradientError, match="is not the gradient of its `penalty`: it differs by"):
        pt.check_hypergradient(tuner(None, decay=WrongGradient), directions=1)
