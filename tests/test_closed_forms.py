"""The closed forms of a penalty belong to the class that defines them, and not to every subclass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.problem.hooks import StepSizes, closed_form
from pactune.trees import Params
from tests.conftest import classes

CLOSED = ["penalty_gradient", "penalty_vjp", "penalty_product"]


class Exponential(pt.WeightDecay):
    """λ is the exponential of the parameters."""

    def decays(self, params: Params) -> Params:
        return {name: value.exp() for name, value in super().decays(params).items()}


class Cubic(pt.WeightDecay):
    """The penalty is no longer quadratic."""

    def penalty(self, params: Params) -> Tensor:
        terms = [(decay * params[name].abs() ** 3).sum() for name, decay in self.decays(params).items()]
        return torch.stack(terms).sum()


class Quartic(Cubic):
    """A subclass of a subclass, with one closed form."""

    def penalty(self, params: Params) -> Tensor:
        return torch.stack([(decay * params[name] ** 4).sum() for name, decay in self.decays(params).items()]).sum()

    def penalty_gradient(self, params: Params) -> Params:
        return {name: 4 * decay * params[name] ** 3 for name, decay in self.decays(params).items()}


class Straight(pt.CorrelatedInputs):
    """The strength is the parameter itself."""

    @property
    def strength(self) -> Tensor:
        return self.raw


class Half(pt.L1):
    """The proximal step of half the penalty."""

    def prox(self, params: Params, step_sizes: StepSizes) -> Params:
        return super().prox(params, {name: 0.5 * size for name, size in step_sizes.items()})


class Faster(pt.WeightDecay):
    """One closed form is written in another way."""

    def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
        return super().penalty_vjp(params, cotangent)


class Renamed(pt.WeightDecay):
    """A subclass that changes no method of the penalty."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, per="tensor", init=0.1)

    def extra_repr(self) -> str:
        return "renamed"

    def largest(self) -> Tensor:
        return torch.stack([value.abs().max() for value in self.values.values()]).max()


MAKE: dict[str, Any] = {
    "decays": lambda model, x: Exponential(model, init=-1.0),
    "penalty": lambda model, x: Cubic(model, init=0.1),
    "one closed form": lambda model, x: Quartic(model, init=0.1),
    "strength": lambda model, x: Straight(model, x, init=0.5),
    "beside another": lambda model, x: nn.ModuleList([Cubic(model, per="tensor", init=0.1), pt.WeightDecay(model)]),
}


@pytest.mark.parametrize("objective", [pt.PACBayes(0.5), pt.HyperDrift(0.5, default=0.7)], ids=["path", "drift"])
@pytest.mark.parametrize("kind", MAKE)
def test_a_subclass_is_tuned_by_its_own_penalty(kind: str, objective: pt.Objective) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    train, valid = classes(12, 1, torch.float64), classes(10, 2, torch.float64)
    hyper = MAKE[kind](model, train[0])
    problem = pt.Problem(model, hyper, train=train, valid=valid, loss=F.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(problem, inner=pt.SGD(0.3), inner_steps=3, outer=outer, objective=objective)
    check = pt.check_hypergradient(tuner)
    assert check.passed, check
    params = {name: p.requires_grad_() for name, p in problem.parameters().items()}
    value = problem.penalty(params, problem.hyperparameters())
    wanted = torch.autograd.grad(value, list(params.values()), materialize_grads=True)
    found = problem.penalty_gradient(params, problem.hyperparameters())
    for name, one in zip(params, wanted, strict=True):
        torch.testing.assert_close(found[name], one)


def test_a_subclass_has_the_envelope_of_its_own_proximal_step(make: Any) -> None:
    model = nn.Linear(4, 3)
    problem = make(model, Half(model, init=0.05)).problem
    params, sizes, hyper = problem.parameters(), {"weight": 0.3, "bias": 0.3}, problem.hyperparameters()
    moved, slope = problem.prox(params, sizes, hyper), problem.envelope_gradient(params, sizes, hyper)
    for name, p in params.items():
        torch.testing.assert_close(slope[name], (p - moved[name]) / 0.3)


def test_a_derivative_by_a_hyperparameter_that_is_none_is_refused(make: Any) -> None:
    class Misspelt(pt.WeightDecay):
        def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
            return {f"{name}s": value for name, value in super().penalty_vjp(params, cotangent).items()}

    model = nn.Linear(4, 3)
    with pytest.raises(pt.SettingError, match="which is none of its λ"):
        make(model, Misspelt(model)).hypergradient()


def test_a_closed_form_lasts_until_a_method_of_its_class_is_overridden() -> None:
    model = nn.Linear(4, 3)
    assert all(closed_form(Renamed(model), name) for name in (*CLOSED, "diagonal"))
    assert all(closed_form(Faster(model), name) for name in (*CLOSED, "diagonal"))
    assert not any(closed_form(Cubic(model), name) for name in (*CLOSED, "diagonal"))
    assert closed_form(Quartic(model), "penalty_gradient")
    assert not any(closed_form(Quartic(model), name) for name in CLOSED[1:])
    assert closed_form(pt.L1(model), "envelope_gradient")
    assert closed_form(nn.Linear(1, 1), "penalty_gradient") is None
