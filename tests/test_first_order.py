"""`FirstOrder`: first-order MAML and DARTS in closed form, and no second derivative of a loss anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.hypergradient import gradients
from pactune.problem.hyper import _key
from tests.test_quadratic import LR, Setup, T, relative
from tests.test_raw_errors import Square

DOUBLE = torch.float64


def rows(seed: int, count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator, dtype=DOUBLE)
    return x, x.sum(1, keepdim=True).sin() + 0.1 * torch.randn(count, 1, generator=generator, dtype=DOUBLE)


class Once(nn.Module):
    """A model with an operation that has one derivative only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = Square.apply(self.first(x))
        return self.last(hidden)


class Gated(Once):
    """The same with gates as hyperparameters."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = Square.apply(self.first(x))
        return self.last(self.gates * hidden)


class Gates(nn.Module):
    def __init__(self, model: Gated) -> None:
        super().__init__()
        self.gates = model.gates


def tuner(model: nn.Module, hyper: nn.Module, estimator: Any, *, data: Any = None, **settings: Any) -> pt.Tuner:
    data = data or {"train": rows(0), "valid": rows(1)}
    problem = pt.Problem(model, hyper, **data, loss=F.mse_loss)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    defaults = {"inner": pt.SGD(0.02), "inner_steps": 4, "objective": pt.ValidationRisk()}
    return pt.Tuner(problem, outer=outer, hypergradient=estimator, **(defaults | settings))


def made(kind: type[nn.Module]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind().double()


@pytest.mark.parametrize("k", [0, 1, 3, None])
def test_decays_have_the_closed_form(k: int | None) -> None:
    """With g_t constant, θ_{t+1} = θ_t − η(g_t + λθ_t) has S_{t+1} = S_t − η(ΛS_t + diag θ_t)."""
    setup = Setup(pt.SGD(LR), zeta=None, hypergradient=pt.FirstOrder(k))
    decay, theta = torch.diag(setup.decay), setup.start
    S = torch.zeros_like(decay)
    for t in range(T):
        if t >= T - (T if k is None else k):
            S = S - LR * (decay @ S + torch.diag(theta))
        theta = theta - LR * (setup.quadratic.A @ theta - setup.quadratic.b + setup.decay * theta)
    if k == 0:
        with pytest.raises(pt.GradientError, match="identically zero"):
            setup.run()
        return
    _, found, end = setup.run()
    assert relative(end, theta) < 1e-12
    assert relative(found, S.T @ (setup.quadratic.B @ theta - setup.quadratic.c)) < 1e-10


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_first_order_maml_is_the_mean_gradient_at_the_ends(engine: str) -> None:
    model = made(Once)
    tasks = [(rows(2 * i), rows(2 * i + 1)) for i in range(3)]
    hyper = pt.Initialization(model)
    found = tuner(model, hyper, pt.FirstOrder(), data={"tasks": tasks}, restart=True, engine=engine)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    found.hypergradient()
    wanted = [torch.zeros_like(value) for value in start.values()]
    for (x, y), (xv, yv) in tasks:
        theta = {name: value.clone() for name, value in start.items()}
        for _ in range(4):
            at = {name: value.requires_grad_() for name, value in theta.items()}
            risk = F.mse_loss(torch.func.functional_call(model, at, (x,)), y)
            slopes = torch.autograd.grad(risk, list(at.values()))
            theta = {name: (p - 0.02 * g).detach() for (name, p), g in zip(at.items(), slopes, strict=True)}
        at = {name: value.requires_grad_() for name, value in theta.items()}
        slopes = torch.autograd.grad(F.mse_loss(torch.func.functional_call(model, at, (xv,)), yv), list(at.values()))
        wanted = [a + g / 3 for a, g in zip(wanted, slopes, strict=True)]
    for name, one in zip(start, wanted, strict=True):
        torch.testing.assert_close(hyper.values[_key(name)].grad, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("estimator", [pt.FirstOrder(), pt.FirstOrder(0), pt.Truncated(0)], ids=str)
def test_first_order_darts_is_the_direct_derivative(estimator: Any) -> None:
    """The gates are a part of the model; a double backward would fail at `Square`."""
    model = made(Gated)
    found = tuner(model, Gates(model), estimator)
    found.hypergradient()
    x, y = rows(1)
    (wanted,) = torch.autograd.grad(F.mse_loss(model(x), y), [model.gates])
    torch.testing.assert_close(model.gates.grad, wanted, rtol=1e-10, atol=1e-12)
    found.fit(3, progress=False)


HYPERS = {
    "initial": (Once, pt.Initialization),
    "decay": (Once, pt.WeightDecay),
    "rates": (Once, pt.LearningRates),
    "gates": (Gated, Gates),
}
DYNAMICS = {"sgd": pt.SGD(0.02, momentum=0.5), "adam": pt.Adam(0.01), "langevin": pt.Langevin(0.02, 1e4)}


@pytest.mark.parametrize("inner", DYNAMICS)
@pytest.mark.parametrize("name", HYPERS)
def test_no_graph_of_a_gradient_is_made(name: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, module = HYPERS[name]
    model = made(kind)
    hyper = module(model).double()
    grad, loss_graphs = torch.autograd.grad, []

    def watched(outputs: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        loss_graphs.append(bool(options.get("create_graph")))
        return grad(outputs, inputs, *args, **options)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    monkeypatch.setattr(gradients, "PLAIN", frozenset())  # all backward passes go through `torch.autograd.grad`
    found = tuner(model, hyper, pt.FirstOrder(), inner=DYNAMICS[inner], restart=name == "initial", chains=1)
    found.hypergradient()
    assert len(loss_graphs) > 4
    assert not any(loss_graphs)
    assert all(float(value.grad.abs().sum()) > 0 for value in hyper.parameters())


def test_exact_reverse_mode_is_refused_for_the_same_model() -> None:
    model = made(Once)
    with pytest.raises(pt.GradientError, match=r"FirstOrder\(\) leaves the second derivatives of the loss out"):
        tuner(model, pt.Initialization(model), pt.Windowed(4), restart=True).hypergradient()


def test_a_hyperparameter_of_the_training_loss_alone_is_refused() -> None:
    model = made(Once)
    with pytest.raises(pt.GradientError, match="identically zero"):
        tuner(model, pt.ExampleWeights(12).double(), pt.FirstOrder()).hypergradient()


def test_the_regularizer_needs_another_estimator() -> None:
    model = made(Once)
    settings = {"objective": pt.PACBayes(0.1), "path_hypergradient": pt.FirstOrder()}
    with pytest.raises(pt.SettingError, match="cannot differentiate the regularizer"):
        tuner(model, pt.WeightDecay(model), pt.FirstOrder(), **settings)
    tuner(model, pt.WeightDecay(model), pt.FirstOrder(), objective=pt.PACBayes(0.1)).hypergradient()


def test_more_steps_than_a_round_has_are_refused() -> None:
    model = made(Once)
    with pytest.raises(pt.SettingError, match="k must be between 0 and inner_steps=4, got 5"):
        tuner(model, pt.WeightDecay(model), pt.FirstOrder(5))


def test_an_optimizer_of_torch_allows_one_step() -> None:
    model = made(Once)
    inner = {"inner": lambda params: torch.optim.SGD(params, lr=0.02)}
    tuner(model, pt.WeightDecay(model), pt.FirstOrder(1), **inner).hypergradient()
    with pytest.raises(pt.SettingError, match="differentiates through 4 steps"):
        tuner(model, pt.WeightDecay(model), pt.FirstOrder(), **inner)
