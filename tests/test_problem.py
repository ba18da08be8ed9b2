"""The problem: both forms, frozen and tied parameters, stochastic forwards, attention; the user's model stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.trees import clone


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


class Tied(nn.Module):
    """The last layer's weight is the first one's, transposed use aside; and one module stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.twice = self.a
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.twice(torch.tanh(self.b(torch.tanh(self.a(x)))))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.unsqueeze(-1)).unsqueeze(1)
        return self.head(F.scaled_dot_product_attention(tokens, tokens, tokens).mean((1, 2)))


class Inside(nn.Module):
    """A model with a hyperparameter among its parts: the slope of the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.slope = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.slope(self.first(x))))


class AlwaysRandom(nn.Module):
    """Random in eval() too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(F.dropout(x, 0.5, training=True))


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3))


def history(tuner: pt.Tuner, steps: int = 3) -> Any:
    return tuner.fit(steps, progress=False).history.drop(columns="seconds")


def test_short_and_general_form_are_the_same(make: Any) -> None:
    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    short, general = history(make()), history(make(train_loss=loss, valid_loss=loss))
    assert general.equals(short[general.columns])
    assert "valid_accuracy" in short


def test_closures_see_modules_that_are_called_as_usual(make: Any, linear: Any) -> None:
    seen = []
    model = linear()
    hyper = pt.WeightDecay(model, init=0.1)

    def loss(given: nn.Module, batch: Any, given_hyper: nn.Module) -> Tensor:
        seen.append((given is model, given_hyper is hyper))
        return F.cross_entropy(given(batch[0]), batch[1])

    make(model, hyper, train_loss=loss, valid_loss=loss).hypergradient()
    assert seen
    assert all(all(pair) for pair in seen)


def test_training_data_may_have_another_structure(make: Any, classes: Any) -> None:
    x, y = classes(12, 1)

    def train(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        inputs, target, weight = batch
        return (weight * F.cross_entropy(model(inputs), target, reduction="none")).mean()

    def valid(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        inputs, target = batch
        return F.cross_entropy(model(inputs), target)

    result = make(train=(x, y, torch.ones(12)), train_loss=train, valid_loss=valid).fit(2, progress=False)
    assert {"train_risk", "valid_risk"} <= set(result.history.columns)


def test_several_inputs_and_own_metrics(classes: Any) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            return self.layer(x * z)

    model = seeded(Two)
    x, y = classes(12, 1)
    data = (x, torch.ones_like(x), y)
    problem = pt.Problem(
        model,
        pt.WeightDecay(model),
        train=data,
        valid=data,
        loss=F.cross_entropy,
        metrics=lambda m, batch: {"rows": len(batch[-1]), "two": 2.0},
    )
    assert problem.evaluate(problem.valid).metrics == {"rows": 12.0, "two": 2.0}


def test_evaluation_averages_over_rows_not_batches(monkeypatch: pytest.MonkeyPatch, linear: Any, classes: Any) -> None:
    monkeypatch.setattr("pactune.problem.data.indexed.EVALUATION_ROWS", 4)
    model, (x, y) = linear(), classes(10, 2)
    problem = pt.Problem(model, pt.WeightDecay(model), train=(x, y), valid=(x, y), loss=F.cross_entropy, batch_size=3)
    with torch.no_grad():
        expected = float(F.cross_entropy(model(x), y))
    assert problem.evaluate(problem.train).risk == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("restart", [False, True])
def test_frozen_parameters_stay(restart: bool, make: Any) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    model[0].requires_grad_(False)
    frozen = clone(dict(model[0].named_parameters()))
    hyper = pt.WeightDecay(model)
    assert sorted(hyper.values.keys()) == ["2/bias", "2/weight"]
    tuner = make(model, hyper, restart=restart, chains=2 if restart else 1)
    trained = clone(dict(model[2].named_parameters()))
    tuner.fit(2, progress=False)
    assert all(torch.equal(value, frozen[name]) for name, value in model[0].named_parameters())
    assert not any(torch.equal(value, trained[name]) for name, value in model[2].named_parameters())


def test_tied_weights_and_shared_modules(make: Any) -> None:
    model = seeded(Tied)
    weight = model.a.weight
    tuner = make(model, pt.WeightDecay(model, per="tensor", init=0.1), hypergradient=pt.Truncated(2))
    assert sorted(tuner.problem.parameters()) == ["a.bias", "a.weight", "b.bias", "head.bias", "head.weight"]
    tuner.fit(2, progress=False)
    assert model.a.weight is weight
    assert model.b.weight is weight
    assert model.twice is model.a
    assert pt.check_hypergradient(tuner, directions=2).error < 1e-5


@pytest.mark.parametrize("restart", [False, True])
def test_hyper_inside_the_model(restart: bool, make: Any) -> None:
    model = seeded(Inside)
    hyper, weight = model.slope, model.slope.weight
    before = weight.detach().clone()
    tuner = make(model, hyper, restart=restart, hypergradient=pt.Truncated(2), outer_lr=0.05)
    assert not any(name.startswith("slope") for name in tuner.problem.parameters())
    tuner.hypergradient()
    assert torch.equal(weight, before), "drawing θ_0 or training must not move λ"
    tuner.fit(3, progress=False)
    assert model.slope.weight is weight
    assert not torch.equal(weight, before)


@pytest.mark.parametrize("build", [dropout_net, AlwaysRandom])
@pytest.mark.parametrize("weights", [False, True], ids=["decay", "example weights"])
@pytest.mark.usefixtures("rng_untouched")
def test_stochastic_forwards_are_reproducible_and_leave_no_trace(build: Any, weights: bool, make: Any) -> None:
    def run(seed: int, training: bool = True) -> Any:
        model = seeded(build).train(training)
        hyper = pt.ExampleWeights(12) if weights else pt.WeightDecay(model, init=0.05)
        return history(make(model, hyper, seed=seed))

    first = run(0)
    with torch.random.fork_rng():
        torch.manual_seed(99)  # wherever the global generator stands
        assert run(0).equals(first)
    assert run(0, training=False).equals(first)
    assert not run(1).equals(first)


def test_dropout_is_differentiated_under_its_own_masks(make: Any) -> None:
    tuner = make(seeded(dropout_net), hypergradient=pt.Truncated(4), path_hypergradient=pt.Windowed(4))
    tuner.hypergradient()
    assert pt.check_hypergradient(tuner, directions=2).error < 1e-6


@pytest.mark.parametrize("weights", [False, True], ids=["decay", "example weights"])
def test_attention_has_a_double_backward(weights: bool, make: Any) -> None:
    model = seeded(Attention)
    hyper = pt.ExampleWeights(12) if weights else pt.WeightDecay(model, init=0.05)
    tuner = make(model, hyper, hypergradient=pt.Truncated(1), path_hypergradient=pt.Truncated(1))
    tuner.hypergradient()
    assert pt.check_hypergradient(tuner, directions=1).error < 1e-6


def test_a_failing_loss_leaves_the_modules_whole(make: Any, linear: Any) -> None:
    model = linear()
    parameters, calls = dict(model.named_parameters()), []

    def loss(given: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        calls.append(1)
        if len(calls) == 9:
            raise ZeroDivisionError
        return F.cross_entropy(given(batch[0]), batch[1])

    hyper = pt.WeightDecay(model, init=0.1)
    tuner = make(model, hyper, train_loss=loss, valid_loss=loss)
    with pytest.raises(ZeroDivisionError):
        tuner.hypergradient()
    assert all(model.get_parameter(name) is value for name, value in parameters.items())
    assert all(isinstance(value, nn.Parameter) for value in hyper.parameters())


def test_rounds_run_under_no_grad_too(make: Any) -> None:
    values = []
    for context in (torch.enable_grad(), torch.no_grad()):
        model = seeded(lambda: nn.Linear(4, 3))
        hyper = nn.ModuleDict({"decay": pt.WeightDecay(model, init=0.1), "rates": pt.LearningRates(model)})
        tuner = make(
            model, hyper, hypergradient=pt.Truncated(2), objective=pt.UnequalSteps(valid_lr=0.05, zeta="theory")
        )
        with context:
            tuner.hypergradient()
        values.append([p.grad.tolist() for p in hyper.parameters() if p.grad is not None])
    assert values[0] == values[1]


def test_a_subset_is_marked_by_its_own_rows(make: Any) -> None:
    problem = make().problem
    assert [mark.size for mark in problem.sample_ids] == [12, 10]
    part = problem.subset(torch.arange(5), torch.arange(4))
    assert [mark.size for mark in part.sample_ids] == [5, 4]
    assert part.sample_ids[0].shared(problem.sample_ids[0]) == 5
    assert [mark.size for mark in problem.sample_ids] == [12, 10]
