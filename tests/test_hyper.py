"""Ready-made hyperparameters by their formulas, and hooks found through containers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.problem.hooks import holders
from pactune.trees import Params, clone


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def params_of(model: nn.Module) -> Params:
    return clone(dict(model.named_parameters()))


@pytest.mark.parametrize(("per", "count"), [("element", 43), ("tensor", 4), ("global", 1)])
def test_weight_decay(per: Any, count: int) -> None:
    model = network()
    decay = pt.WeightDecay(model, per=per, init=0.3)
    assert sum(p.numel() for p in decay.parameters()) == count
    params = {n: p.requires_grad_() for n, p in params_of(model).items()}
    penalty = decay.penalty(params)
    assert float(penalty) == pytest.approx(0.15 * sum(float((p**2).sum()) for p in params.values()), rel=1e-6)
    by_autograd = torch.autograd.grad(penalty, list(params.values()))
    for name, gradient in zip(params, by_autograd, strict=True):
        torch.testing.assert_close(decay.penalty_gradient(params)[name], gradient)


@pytest.mark.parametrize(("per", "count"), [("element", 35), ("tensor", 2), ("global", 1)])
def test_a_decay_may_leave_biases_out(per: Any, count: int) -> None:
    model = network()
    decay = pt.WeightDecay(model, per=per, init=0.3, biases=False)
    assert sum(p.numel() for p in decay.parameters()) == count
    assert "biases=False" in repr(decay)
    params = params_of(model)
    weights = {name: p for name, p in params.items() if p.ndim == 2}
    assert decay.penalty_gradient(params).keys() == weights.keys()
    wanted = 0.15 * sum(float((p**2).sum()) for p in weights.values())
    assert float(decay.penalty(params).detach()) == pytest.approx(wanted, rel=1e-6)


def test_a_model_that_trains_only_biases_is_decayed_whole() -> None:
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(requires_grad=False)
    decay = pt.WeightDecay(model, per="tensor", init=0.3, biases=False)
    assert list(decay.values) == ["bias"]
    assert "biases" not in repr(decay)


@pytest.mark.parametrize("per", ["element", "tensor", "global"])
def test_learning_rates_start_at_one_and_stay_positive(per: Any, make: Any) -> None:
    model = network()
    rates = pt.LearningRates(model, per=per)
    params = params_of(model)
    assert all(bool((f == 1).all()) for f in rates.learning_rates(params).values())
    with torch.no_grad():
        for value in rates.parameters():
            value.fill_(math.log(0.5))
    tuner = make(model, rates, inner=pt.SGD(0.2), inner_steps=1)
    tuner.hypergradient()
    halved = make(network(), inner=pt.SGD(0.1), inner_steps=1, hyper=None)
    with torch.no_grad():
        for value in halved.problem.hyper.parameters():
            value.zero_()
    halved.hypergradient()
    for name, value in halved.problem.parameters().items():
        torch.testing.assert_close(tuner.problem.parameters()[name], value)


@pytest.mark.parametrize("inner", [pt.Adam(0.02), pt.Langevin(0.2, 30.0), pt.SGD(0.2, momentum=0.5)], ids=str)
def test_factor_one_half_is_half_the_step_size(inner: Any, make: Any) -> None:
    """For Langevin the noise follows: its variance is 2η/τ with the whole η."""

    def trained(given: Any, factor: float) -> Tensor:
        model = network()
        rates = pt.LearningRates(model, per="global")
        nn.init.constant_(rates.values["all"], math.log(factor))
        tuner = make(model, rates, inner=given, hypergradient=pt.Truncated(1))
        tuner.hypergradient()
        return torch.cat([p.reshape(-1) for p in tuner.problem.parameters().values()])

    half = replace(inner, lr=inner.lr / 2)
    torch.testing.assert_close(trained(inner, 0.5), trained(half, 1.0))
    assert not torch.allclose(trained(inner, 0.5), trained(inner, 1.0))


def test_initialization_is_where_training_starts(make: Any) -> None:
    model = network()
    start = pt.Initialization(model)
    with torch.no_grad():
        for value in start.parameters():
            value.mul_(2)
    wanted = clone(dict(start.named_parameters()))
    tiny = pt.SGD(1e-12)
    tuner = make(model, start, inner=tiny, restart=True, hypergradient=pt.Truncated(4))
    tuner.hypergradient()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), wanted["values." + name.replace(".", "/")])


def test_initialization_learns_where_to_start(make: Any) -> None:
    model = network()
    start = pt.Initialization(model)
    tuner = make(model, start, restart=True, hypergradient=pt.Windowed(4), outer_lr=0.5, objective=pt.ValidationRisk())
    rows = tuner.fit(15, progress=False).rows
    assert rows[-1]["objective"] < rows[0]["objective"] - 0.05


@pytest.mark.parametrize("shape", ["(n,)", "(n, 1)", "(n, 2)"])
def test_example_weights_weigh_row_by_row(shape: str) -> None:
    weights = pt.ExampleWeights(5)
    with torch.no_grad():
        weights.logits.copy_(torch.linspace(-1, 1, 5))
    losses, index = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([4, 0, 2])
    given = {"(n,)": losses, "(n, 1)": losses[:, None], "(n, 2)": torch.stack([losses - 1, losses + 1], 1)}[shape]
    expected = (2 * torch.sigmoid(torch.tensor([1.0, -1.0, 0.0])) * losses).mean()
    torch.testing.assert_close(weights.weigh(given, index), expected)


def test_example_weights_know_their_rows_in_mini_batches(make: Any, classes: Any) -> None:
    """Wrong labels lose weight: the gradient of their logits pushes down more than that of right ones."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    wrong = torch.arange(60) % 5 == 0
    weights = pt.ExampleWeights(60)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
    valid = torch.randn(200, 4, generator=generator)
    tuner = make(
        model,
        weights,
        train=(x, torch.where(wrong, 1 - y, y)),
        valid=(valid, (valid[:, 0] > 0).long()),
        batch_size=7,
        inner_steps=20,
        hypergradient=pt.Truncated(20),
        objective=pt.ValidationRisk(),
        outer_lr=20.0,
    )
    tuner.fit(20, progress=False)
    found = weights.weights().detach()
    assert float(found[wrong].mean()) < float(found[~wrong].mean()) - 0.1


def test_hooks_are_found_through_containers() -> None:
    model = network()
    decay, rates, start = pt.WeightDecay(model), pt.LearningRates(model), pt.Initialization(model)
    nested = nn.ModuleDict({"penalty": decay, "inner": nn.ModuleList([rates, start])})
    assert holders(nested, "penalty") == [decay]
    assert holders(nested, "learning_rates") == [rates]
    assert holders(nested, "initial") == [start]
    assert holders(nested, "weigh") == []


def test_penalties_add_and_factors_multiply(classes: Any) -> None:
    model = network()
    first, second = pt.WeightDecay(model, per="global", init=0.1), pt.WeightDecay(model, per="tensor", init=0.2)
    rates = [pt.LearningRates(model, per="global"), pt.LearningRates(model, per="tensor")]
    for module in rates:
        for value in module.parameters():
            nn.init.constant_(value, math.log(2))
    hyper = nn.ModuleDict({"penalty": first, "other": second, "learning_rates": rates[0], "more": rates[1]})
    data = classes(12, 1)
    problem = pt.Problem(model, hyper, train=data, valid=data, loss=F.cross_entropy)
    params, values = params_of(model), problem.hyperparameters()
    whole = problem.penalty_gradient(params, values)
    factors = problem.learning_rates(params, values)
    for name, p in params.items():
        torch.testing.assert_close(whole[name], 0.3 * p)
        torch.testing.assert_close(factors[name], torch.full_like(factors[name], 4.0))
    assert float(problem.penalty(params, values)) == pytest.approx(
        0.15 * sum(float((p**2).sum()) for p in params.values()), rel=1e-5
    )


class OneTensor(nn.Module):
    """λ/2 ‖θ_name‖² for a single tensor."""

    def __init__(self, name: str, value: float) -> None:
        super().__init__()
        self.name, self.value = name, nn.Parameter(torch.tensor(value))

    def penalty(self, params: Params) -> Tensor:
        return 0.5 * self.value * (params[self.name] ** 2).sum()


class OneTensorClosed(OneTensor):
    def penalty_gradient(self, params: Params) -> Params:
        return {self.name: self.value * params[self.name]}

    def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
        return {"value": (params[self.name] * cotangent[self.name]).sum()}

    def penalty_product(self, params: Params, vector: Params) -> Params:
        return {self.name: self.value * vector[self.name]}


class Constant(pt.LearningRates):
    """Learning rates with a penalty that does not depend on the parameters of the model."""

    def penalty(self, params: Params) -> Tensor:
        return torch.ones(())


def test_a_penalty_that_is_constant_has_no_gradient(make: Any) -> None:
    model = network()
    problem = make(model, Constant(model), hypergradient=pt.Truncated(2)).problem
    found = problem.penalty_gradient(problem.parameters(), problem.hyperparameters())
    assert all(torch.equal(value, torch.zeros_like(value)) for value in found.values())
    tuner = make(model, Constant(model), hypergradient=pt.Truncated(2), objective=pt.ValidationRisk())
    assert pt.check_hypergradient(tuner, directions=1).passed


def test_a_hyperparameter_of_a_constant_penalty_is_named(make: Any) -> None:
    hyper = OneTensor("0.weight", 0.3)
    hyper.penalty = lambda params: torch.ones(())  # type: ignore[method-assign]
    with pytest.raises(pt.GradientError, match="`value` enters neither a loss, a penalty"):
        make(network(), hyper).fit(1, progress=False)


def test_a_subclass_may_have_other_weights() -> None:
    class Halved(pt.ExampleWeights):
        def weights(self, index: Tensor | None = None) -> Tensor:
            return 0.5 * super().weights(index)

    losses, index = torch.tensor([1.0, 3.0]), torch.tensor([0, 2])
    assert Halved(4).weigh(losses, index).item() == 0.5 * pt.ExampleWeights(4).weigh(losses, index).item() == 1.0


@pytest.mark.parametrize("kind", [OneTensor, OneTensorClosed])
def test_penalties_of_different_tensors_all_count(kind: Any, classes: Any) -> None:
    model, data = network(), classes(12, 1)
    names = ["0.weight", "0.weight", "2.bias"]
    hyper = nn.ModuleList([kind(name, 0.3 + i) for i, name in enumerate(names)])
    problem = pt.Problem(model, hyper, train=data, valid=data, loss=F.cross_entropy)
    params, vector = problem.parameters(), {n: torch.randn_like(p) for n, p in problem.parameters().items()}
    found = problem.penalty_gradient(params, problem.hyperparameters())
    factors = {"0.weight": 0.3 + 1.3, "2.bias": 2.3}
    for name, p in params.items():
        torch.testing.assert_close(found[name].detach(), factors.get(name, 0.0) * p)
    if kind is OneTensorClosed:
        product = problem.penalty_product(params, problem.hyperparameters(), vector)
        by_hyper = problem.penalty_vjp(params, problem.hyperparameters(), vector)
        for name, v in vector.items():
            torch.testing.assert_close(product[name].detach(), factors.get(name, 0.0) * v)
        for i, name in enumerate(names):
            torch.testing.assert_close(by_hyper[f"{i}.value"], (params[name] * vector[name]).sum())


def test_tuning_moves_what_it_should(make: Any) -> None:
    """Weight decay rises where the validation risk asks for it: a large penalty cannot come from nothing."""
    model = network()
    hyper = nn.ModuleDict({"decay": pt.WeightDecay(model, per="global"), "rates": pt.LearningRates(model)})
    before = clone(dict(hyper.named_parameters()))
    make(model, hyper, hypergradient=pt.Truncated(2), outer_lr=0.5).fit(3, progress=False)
    moved = [not torch.equal(value, before[name]) for name, value in hyper.named_parameters()]
    assert all(moved)


@pytest.mark.parametrize("per", ["element", "tensor", "global"])
def test_closed_form_of_the_mixed_derivative_is_that_of_autograd(per: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        hyper = nn.ModuleDict({"decay": pt.WeightDecay(model, per=per, init=0.1)})
        x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 2
        problem = pt.Problem(model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), loss=F.cross_entropy)
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        tuner = pt.Tuner(problem, inner=pt.Adam(lr=0.01), inner_steps=5, outer=outer, objective=pt.PACBayes(zeta=0.5))
        tuner.hypergradient()
        return {name: p.grad for name, p in hyper.named_parameters()}

    calls, original = [], pt.WeightDecay.penalty_vjp

    def counted(self: pt.WeightDecay, params: Params, cotangent: Params) -> Params:
        calls.append(1)
        return original(self, params, cotangent)

    monkeypatch.setattr(pt.WeightDecay, "penalty_vjp", counted)
    fast = gradients()
    assert len(calls) == 6  # five summands, and the step that T1–T2 goes back through
    monkeypatch.setattr(pt.Problem, "has_penalty_vjp", False)
    monkeypatch.setattr(pt.Problem, "has_closed_steps", False)
    slow = gradients()
    assert len(calls) == 6
    assert fast.keys() == slow.keys()
    for name, value in fast.items():
        assert torch.allclose(value, slow[name], rtol=1e-12, atol=1e-15), name
