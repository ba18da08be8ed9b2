"""Tasks: many problems that share λ, in a list or drawn anew at every outer step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.engines import traced as traced_engine
from pactune.engines.traced import Traced
from pactune.errors import CertificateError, DataError, PactuneError, SettingError
from pactune.trees import Params

T = 3
Task = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def mse_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """F.mse_loss has no second derivative in forward mode."""
    return (prediction - target).square().mean()


def draw(generator: torch.Generator, rows: int = 6) -> Task:
    """Return a line with a random slope, as a training and a validation set."""
    slope = torch.randn(2, 1, generator=generator, dtype=torch.float64)
    x = torch.randn(2 * rows, 2, generator=generator, dtype=torch.float64)
    y = x @ slope
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


def drawn_tasks(count: int = 3, rows: int = 6) -> list[Task]:
    return [draw(torch.Generator().manual_seed(seed), rows) for seed in range(count)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


class Proximal(nn.Module):
    """θ_0 = λ and the penalty ½ s Σ(θ − λ)², as in iMAML."""

    def __init__(self, model: nn.Module, strength: float = 1.0) -> None:
        super().__init__()
        self.start, self.strength = pt.Initialization(model), strength

    def initial(self, params: Params) -> Params:
        return self.start.initial(params)

    def penalty(self, params: Params) -> Tensor:
        start = self.start.initial(params)
        parts = [((p - start[name]) ** 2).sum() for name, p in params.items()]
        return 0.5 * self.strength * torch.stack(parts).sum()


HYPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "initialization": pt.Initialization,
    "decay": lambda model: pt.WeightDecay(model, init=0.1),
    "rates": pt.LearningRates,
    "proximal": Proximal,
}
ESTIMATORS: dict[str, pt.Estimator] = {
    "W=T": pt.Windowed(T),
    "K=T": pt.Truncated(T),
    "forward": pt.ForwardMode(),
}


def build(hyper: str = "initialization", **settings: Any) -> pt.Tuner:
    names = ("tasks", "tasks_per_step", "train", "valid", "batch_size")
    data = {name: settings.pop(name) for name in names if name in settings} or {"tasks": draw, "tasks_per_step": 3}
    model = network()
    lambdas = HYPERS[hyper](model)
    problem = pt.Problem(model, lambdas, **data, loss=mse_loss)
    estimator = settings.pop("estimator", pt.Windowed(T))
    defaults: dict[str, Any] = {"inner": pt.SGD(lr=0.1), "inner_steps": T, "objective": pt.PACBayes(zeta=0.1)}
    defaults |= {"outer": torch.optim.SGD(lambdas.parameters(), lr=0.05), "restart": True}
    defaults |= {"hypergradient": estimator, "path_hypergradient": estimator}
    return pt.Tuner(problem, **(defaults | settings))


def gradient_of(tuner: pt.Tuner) -> tuple[float, Params]:
    total = tuner.hypergradient().total
    return total, {name: p.grad.clone() for name, p in tuner.problem.hyper.named_parameters() if p.grad is not None}


# The gradient


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("hyper", HYPERS)
def test_the_gradient_over_tasks_is_the_mean_over_separate_problems(hyper: str, estimator: str, engine: str) -> None:
    tasks = drawn_tasks()
    settings = {"estimator": ESTIMATORS[estimator], "initial": lambda generator: dict(network().named_parameters())}
    total, gradient = gradient_of(build(hyper, tasks=tasks, engine=engine, **settings))
    each = [gradient_of(build(hyper, train=train, valid=valid, engine="eager", **settings)) for train, valid in tasks]
    assert total == pytest.approx(sum(value for value, _ in each) / 3, rel=1e-12)
    for name, found in gradient.items():
        wanted = torch.stack([one[name] for _, one in each]).mean(0)
        assert float(wanted.abs().max()) > 1e-6
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hyper", HYPERS)
def test_the_check_covers_drawn_tasks(hyper: str) -> None:
    check = pt.check_hypergradient(build(hyper), directions=1)
    assert float(check.promised.norm()) > 1e-5
    assert check.passed, check


@pytest.mark.slow
def test_implicit_differentiation_covers_tasks() -> None:
    """iMAML: at the minimum of risk + proximal term the implicit gradient is the exact one."""
    settings = {
        "inner_steps": 300,
        "objective": pt.ValidationRisk(),
        "estimator": pt.Implicit(pt.ConjugateGradient(50)),
    }
    check = pt.check_hypergradient(build("proximal", path_hypergradient=pt.Truncated(0), **settings), directions=1)
    assert check.passed, check


def maml_by_hand(model: nn.Module, tasks: list[Task]) -> list[Tensor]:
    """MAML as the example of `higher` does it: differentiable SGD, task by task, gradients accumulated."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for (x, y), (xv, yv) in tasks:
        start = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
        at = start
        for _ in range(T):
            loss = mse_loss(torch.func.functional_call(model, at, (x,)), y)
            slopes = torch.autograd.grad(loss, list(at.values()), create_graph=True)
            at = {name: p - 0.1 * slope for (name, p), slope in zip(at.items(), slopes, strict=True)}
        risk = mse_loss(torch.func.functional_call(model, at, (xv,)), yv) / len(tasks)
        found = torch.autograd.grad(risk, list(start.values()))
        total = [a + b for a, b in zip(total, found, strict=True)]
    return total


def maml_by_higher(model: nn.Module, tasks: list[Task]) -> list[Tensor]:
    higher = pytest.importorskip("higher")
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x, y), (xv, yv) in tasks:
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (net, moves):
            for _ in range(T):
                moves.step(mse_loss(net(x), y))
            (mse_loss(net(xv), yv) / len(tasks)).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("way", [maml_by_hand, maml_by_higher])
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_maml_has_the_gradient_of_higher(way: Callable[..., list[Tensor]], engine: str) -> None:
    tasks = drawn_tasks()
    _, gradient = gradient_of(build(tasks=tasks, objective=pt.ValidationRisk(), engine=engine))
    wanted = dict(zip(dict(network().named_parameters()), way(network(), tasks), strict=True))
    for name, value in wanted.items():
        assert torch.allclose(gradient[f"values.{name.replace('.', '/')}"], value, rtol=1e-6, atol=1e-12)


# Which tasks


def seen_by(tuner: pt.Tuner, steps: int) -> list[list[Tensor]]:
    found = []
    for _ in range(steps):
        tuner.hypergradient()
        found.append([part.valid.first().data[0] for part in tuner.problem.subproblems])
    return found


def test_tasks_are_a_function_of_seed_and_step() -> None:
    one, two, other = (seen_by(build(seed=seed), 2) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))
    assert not torch.equal(one[0][0], one[1][0])
    assert not torch.equal(one[0][0], other[0][0])
    assert not torch.equal(one[0][0], one[0][1])


def test_a_list_is_drawn_without_replacement() -> None:
    tasks = drawn_tasks(5)
    for seen in seen_by(build(tasks=tasks, tasks_per_step=4), 6):
        numbers = [next(i for i, task in enumerate(tasks) if torch.equal(task[1][0], x)) for x in seen]
        assert len(set(numbers)) == 4


def test_a_resumed_run_meets_the_same_tasks(tmp_path: Path) -> None:
    whole = build().fit(4, run_dir=tmp_path / "whole")
    build().fit(2, run_dir=tmp_path / "parts")
    parts = build().fit(4, run_dir=tmp_path / "parts", resume=True)
    assert whole.history.drop(columns="seconds").equals(parts.history.drop(columns="seconds"))
    for a, b in zip(whole.hyper.parameters(), parts.hyper.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_fixed_list_lets_parameters_go_on() -> None:
    settings = {"restart": False, "estimator": pt.Truncated(1), "path_hypergradient": pt.Truncated(0)}
    result = build("decay", tasks=drawn_tasks(), **settings).fit(3)
    assert result.history["risk"].is_monotonic_decreasing
    with pytest.raises(SettingError, match="restart=True"):
        build("decay", tasks=drawn_tasks(), tasks_per_step=2, **settings)


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_tasks_may_differ_in_their_number_of_rows(engine: str) -> None:
    tasks = [*drawn_tasks(2, rows=4), *drawn_tasks(2, rows=7)]
    total, gradient = gradient_of(build(tasks=tasks, engine=engine))
    each = [gradient_of(build(train=train, valid=valid, engine="eager")) for train, valid in tasks]
    assert total == pytest.approx(sum(value for value, _ in each) / 4, rel=1e-12)
    for name, found in gradient.items():
        assert torch.allclose(found, torch.stack([one[name] for _, one in each]).mean(0), rtol=1e-9, atol=1e-12)


# Recordings


def count_recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    trace = traced_engine.trace

    def counted(*arguments: Any, **settings: Any) -> Any:
        made.append(1)
        return trace(*arguments, **settings)

    monkeypatch.setattr(traced_engine, "trace", counted)
    return made


@pytest.mark.parametrize("estimator", [pt.Windowed(T), pt.Truncated(1)])
def test_new_tasks_need_no_new_recording(estimator: pt.Estimator, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_recordings(monkeypatch)
    path = estimator if isinstance(estimator, pt.Windowed) else pt.Truncated(0)
    settings = {"estimator": estimator, "path_hypergradient": path, "inner_steps": T if path is estimator else 12}
    tuner = build("decay", engine=Traced(), **settings)
    tuner.hypergradient()
    after_first = len(made)
    assert after_first
    for _ in range(3):
        tuner.hypergradient()
    assert len(made) == after_first


def test_a_recorded_round_is_the_eager_round_bit_for_bit() -> None:
    one, two = (build(engine=Traced(after=after)).fit(4) for after in (0, 10**6))
    assert one.history.drop(columns="seconds").equals(two.history.drop(columns="seconds"))


def test_a_recorded_round_notices_a_changed_loss() -> None:
    strength = [1.0]
    model = network()
    start = pt.Initialization(model)

    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        return strength[0] * mse_loss(prediction, target)

    problem = pt.Problem(model, start, tasks=draw, tasks_per_step=3, loss=loss)
    settings: dict[str, Any] = {"inner": pt.SGD(lr=0.1), "inner_steps": T, "hypergradient": pt.Windowed(T)}
    outer = torch.optim.SGD(start.parameters(), lr=0.0)
    settings |= {"outer": outer, "objective": pt.ValidationRisk(), "restart": True}
    tuner, other = pt.Tuner(problem, engine=Traced(), **settings), pt.Tuner(problem, engine="eager", **settings)
    tuner.hypergradient()
    other.hypergradient()
    strength[0] = 2.0
    assert tuner.hypergradient().risk == pytest.approx(other.hypergradient().risk, rel=1e-12)


# Refusals


def long_rows(generator: torch.Generator) -> Task:
    rows = 3 if torch.rand((), generator=generator) < 0.5 else 2
    x = torch.randn(4, rows, generator=generator, dtype=torch.float64)
    return (x, x[:, :1]), (x, x[:, :1])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no number of tasks": ({"tasks": draw}, "tasks_per_step"),
    "too many tasks": ({"tasks": drawn_tasks(2), "tasks_per_step": 3}, "`tasks_per_step` is 3"),
    "no task": ({"tasks": []}, "list of tasks"),
    "no list": ({"tasks": 3}, "list of tasks"),
    "no pair": ({"tasks": [drawn_tasks(1)[0][0][0]]}, "a task must be a pair"),
    "three parts": ({"tasks": lambda g: (1, 2, 3), "tasks_per_step": 2}, "a task must be a pair"),
    "no generator": ({"tasks": lambda: drawn_tasks(1)[0], "tasks_per_step": 2}, "function of a torch.Generator"),
    "zero tasks": ({"tasks": draw, "tasks_per_step": 0}, "tasks_per_step"),
    "half a task": ({"tasks": draw, "tasks_per_step": 1.5}, "tasks_per_step"),
    "two ways": ({"tasks": draw, "tasks_per_step": 2, "train": drawn_tasks(1)[0][0]}, "in one way"),
    "empty task": ({"tasks": [((torch.ones(0, 2), torch.ones(0, 1)), drawn_tasks(1)[0][1])]}, "empty"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_has_one_clear_message(wrong: str) -> None:
    data, message = WRONG[wrong]
    with pytest.raises(PactuneError, match=message):
        build(**data)


def test_tasks_of_another_form_are_refused() -> None:
    other = (torch.ones(4, 3, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64))
    with pytest.raises(DataError, match="rows of one form"):
        build(tasks=[*drawn_tasks(2), (other, other)])
    with pytest.raises(PactuneError, match="rows of one form"):
        build(tasks=long_rows, tasks_per_step=8)


LATER = {
    "rows": (lambda x, y: (x[1:], y), "same number of rows"),
    "type": (lambda x, y: (x, y.float()), "rows of one form"),
    "shape": (lambda x, y: (x, y[:, 0]), "rows of one form"),
    "list": (lambda x, y: (x, y.tolist()), "must be a tensor"),
}


@pytest.mark.parametrize("wrong", LATER)
def test_a_task_of_a_later_step_is_checked_too(wrong: str) -> None:
    change, message = LATER[wrong]
    later = False

    def changing(generator: torch.Generator) -> Any:
        train, valid = draw(generator)
        return change(*train) if later else train, valid

    tuner = build(tasks=changing, tasks_per_step=2)
    for _ in range(2):
        tuner.hypergradient()
    later = True
    with pytest.raises(DataError, match=message):
        tuner.hypergradient()


def test_settings_without_a_meaning_for_tasks_are_refused() -> None:
    with pytest.raises(SettingError, match="auto"):
        build(objective=pt.PACBayes(zeta="auto"))
    with pytest.raises(SettingError, match="online"):
        build("decay", online=True, estimator=pt.Truncated(1))
    with pytest.raises(SettingError, match="tasks have one each"):
        build().fit(1, test=drawn_tasks(1)[0][1])
    model = network()
    with pytest.raises(SettingError, match="ExampleWeights"):
        pt.Problem(model, pt.ExampleWeights(6).double(), tasks=drawn_tasks(), loss=nn.functional.mse_loss)


def test_no_certificate_after_tasks() -> None:
    result = build("decay", estimator=pt.Truncated(1), path_hypergradient=pt.Truncated(0)).fit(1)
    train, valid = draw(torch.Generator().manual_seed(9), rows=20)
    problem = pt.Problem(result.model, result.hyper, train=train, valid=valid, loss=mse_loss)
    known = result.provenance.touch("prior hyper", *result.provenance.touched["hyper"])
    claim = bounds.TrainSide(problem, CoupledChains(0.2, 50.0, 5), provenance=known, models=2)
    with pytest.raises(CertificateError, match="rows of tasks are not kept"):
        pt.certify(claim)


def test_a_problem_with_tasks_can_be_copied() -> None:
    problem = build().problem
    assert copy.deepcopy(problem).has_tasks


def test_first_order_maml_is_a_direct_derivative() -> None:
    """At θ_T + λ − λ', with λ' a constant equal to λ, the direct λ-derivative of R_V is ∇R_V(θ_T)."""
    tasks, model = drawn_tasks(), network()
    start = pt.Initialization(model)

    def valid_loss(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
        params = dict(model.named_parameters())
        own = hyper.initial(params)
        moved = {name: p + own[name] - own[name].detach() for name, p in params.items()}
        return mse_loss(torch.func.functional_call(model, moved, (batch[0],)), batch[1])

    losses = {"train_loss": lambda model, batch, hyper: mse_loss(model(batch[0]), batch[1]), "valid_loss": valid_loss}
    problem = pt.Problem(model, start, tasks=tasks, **losses)
    outer = torch.optim.SGD(start.parameters(), lr=0.1)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.Truncated(0), "restart": True}
    _, gradient = gradient_of(pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=T, outer=outer, **settings))
    total = {name: torch.zeros_like(p) for name, p in network().named_parameters()}
    for (x, y), (xv, yv) in tasks:
        own = network()
        for _ in range(T):
            slopes = torch.autograd.grad(mse_loss(own(x), y), list(own.parameters()))
            with torch.no_grad():
                for p, slope in zip(own.parameters(), slopes, strict=True):
                    p -= 0.1 * slope
        for name, slope in zip(total, torch.autograd.grad(mse_loss(own(xv), yv), list(own.parameters())), strict=True):
            total[name] += slope / len(tasks)
    for name, value in total.items():
        assert torch.allclose(gradient[f"values.{name.replace('.', '/')}"], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("overridden", [False, True])
def test_an_initialization_of_all_parameters_needs_no_draw(overridden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class FromDraw(pt.Initialization):
        def initial(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value + 0 * params[name] for name, value in super().initial(params).items()}

    drawn: list[int] = []
    model = network()
    start = FromDraw(model) if overridden else pt.Initialization(model)
    problem = pt.Problem(model, start, tasks=drawn_tasks(), loss=nn.functional.mse_loss)
    outer = torch.optim.SGD(start.parameters(), lr=0.1)
    settings = {"objective": pt.ValidationRisk(), "hypergradient": pt.Windowed(T), "restart": True}
    tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=T, outer=outer, **settings)
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda module: drawn.append(1))
    tuner.hypergradient()
    assert bool(drawn) == overridden
