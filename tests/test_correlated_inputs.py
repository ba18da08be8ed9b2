"""`CorrelatedInputs` and `WeightDecay(positive=True)`: closed forms against autograd, and the graph of inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import pactune as pt
from pactune.problem import correlated_inputs
from pactune.problem.correlated_inputs import takes_inputs
from pactune.trees import Params
from tests.mistakes import Case, check_refused

ROWS, WIDTH = 60, 7


def inputs(width: int = WIDTH, rows: int = ROWS) -> Tensor:
    """Return a random walk: neighbours are correlated, and every third input has its sign changed."""
    noise = torch.randn(rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signs = 1.0 - 2.0 * (torch.arange(width) % 3 == 0)
    return noise.cumsum(1) * signs


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def random_like(params: Params, seed: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in params.items()}


MODULES: dict[str, Any] = {
    "correlated inputs": lambda model: pt.CorrelatedInputs(model, inputs(), init=0.3),
    "one neighbour": lambda model: pt.CorrelatedInputs(model, inputs(), neighbours=1, init=2.0),
    "per element": lambda model: pt.WeightDecay(model, per="element", init=0.3, positive=True),
    "per tensor": lambda model: pt.WeightDecay(model, per="tensor", init=1e-4, positive=True),
    "global": lambda model: pt.WeightDecay(model, per="global", init=40.0, positive=True),
    "no biases": lambda model: pt.WeightDecay(model, per="tensor", init=0.3, positive=True, biases=False),
    "global without biases": lambda model: pt.WeightDecay(model, per="global", init=0.3, biases=False),
}


@pytest.mark.parametrize("name", MODULES)
def test_closed_forms_are_the_derivatives(name: str) -> None:
    model = network()
    hyper = MODULES[name](model)
    params = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    vector = random_like(params, 1)
    names, leaves = list(params), list(params.values())
    found = torch.autograd.grad(hyper.penalty(params), leaves, create_graph=True, allow_unused=True)
    gradient = {n: g for n, g in zip(names, found, strict=True) if g is not None}
    closed = hyper.penalty_gradient(params)
    assert closed.keys() == gradient.keys()
    assert max(float(g.detach().abs().max()) for g in gradient.values()) > 1e-5
    for n, g in gradient.items():
        torch.testing.assert_close(closed[n], g)
    product = sum((gradient[n] * vector[n]).sum() for n in gradient)
    twice = torch.autograd.grad(product, leaves, retain_graph=True, allow_unused=True)
    for n, value in hyper.penalty_product(params, vector).items():
        torch.testing.assert_close(value, twice[names.index(n)])
    by_hyper = torch.autograd.grad(product, list(hyper.parameters()))
    closed_vjp = hyper.penalty_vjp(params, vector)
    for (n, _), value in zip(hyper.named_parameters(), by_hyper, strict=True):
        torch.testing.assert_close(closed_vjp[n], value)


def dense(hyper: pt.CorrelatedInputs) -> Tensor:
    """Return the Laplacian as a matrix, by the definition: Σ a_ij (e_i − σ_ij e_j)(e_i − σ_ij e_j)ᵀ."""
    width = len(hyper.degrees)
    found = torch.zeros(width, width, dtype=torch.float64)
    for i in range(width):
        for j, pull in zip(hyper.places[i].tolist(), hyper.pulls[i].tolist(), strict=True):
            if i < j and pull != 0:
                edge = torch.zeros(width, dtype=torch.float64)
                edge[i], edge[j] = 1.0, -1.0 if pull > 0 else 1.0
                found += abs(pull) * torch.outer(edge, edge)
    return found


def test_the_penalty_is_the_sum_over_pairs() -> None:
    model = network()
    hyper = pt.CorrelatedInputs(model, inputs(), init=0.3)
    matrix, weight = dense(hyper), model[1].weight.detach()
    assert float(torch.linalg.eigvalsh(matrix)[-1]) == pytest.approx(1.0, rel=1e-3)  # by a hundred power iterations
    wanted = 0.5 * 0.3 * torch.einsum("oi,ij,oj->", weight, matrix, weight)
    torch.testing.assert_close(hyper.penalty({"1.weight": weight}).detach(), wanted)


def test_a_pull_is_the_squared_correlation_with_its_sign() -> None:
    data = inputs()
    hyper = pt.CorrelatedInputs(network(), data, neighbours=2)
    wanted = torch.corrcoef(data.T)
    ratios = [
        pull / float(wanted[i, j] * wanted[i, j].abs())
        for i in range(WIDTH)
        for j, pull in zip(hyper.places[i].tolist(), hyper.pulls[i].tolist(), strict=True)
        if pull != 0
    ]
    assert len(ratios) >= 2 * WIDTH
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-9)  # one scale for all
    assert bool((hyper.pulls < 0).any()) and bool((hyper.pulls > 0).any())  # noqa: PT018


def test_blocks_of_inputs_have_the_graph_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pt.CorrelatedInputs(network(), inputs())
    monkeypatch.setattr(correlated_inputs, "BLOCK", 3)
    blocks = pt.CorrelatedInputs(network(), inputs())
    torch.testing.assert_close(dense(blocks), dense(whole))


def test_uncorrelated_and_constant_inputs_are_not_joined() -> None:
    data = torch.cat([torch.eye(4)[:, :3] - 0.25, torch.ones(4, 1)], 1)  # correlations of -1/3, noise of 1
    hyper = pt.CorrelatedInputs(nn.Linear(4, 1), data)
    assert not bool(hyper.pulls.any())
    assert float(hyper.penalty({"weight": torch.ones(1, 4)}).detach()) == 0


def test_scale_and_shift_of_the_inputs_change_nothing() -> None:
    one = pt.CorrelatedInputs(network(), inputs())
    other = pt.CorrelatedInputs(network(), inputs() * torch.logspace(-3, 3, WIDTH, dtype=torch.float64) + 5)
    torch.testing.assert_close(dense(other), dense(one), rtol=1e-6, atol=1e-9)


def test_images_are_flattened_and_the_first_layer_is_found() -> None:
    hyper = pt.CorrelatedInputs(nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), inputs(6).reshape(ROWS, 2, 3))
    assert hyper.layer == "1.weight"
    assert "layer='1.weight', inputs=6" in repr(hyper)


def test_which_models_take_inputs() -> None:
    data = inputs().float()
    assert takes_inputs(network(), data)
    assert not takes_inputs(nn.Linear(3, 1), data)
    assert not takes_inputs(nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(WIDTH, 1)), data)
    assert not takes_inputs(nn.Linear(WIDTH, 1), data.long())
    assert not takes_inputs(nn.Linear(WIDTH, 1), data * float("nan"))
    assert not takes_inputs(nn.Linear(WIDTH, 1), data[:1])
    assert not takes_inputs(nn.Linear(WIDTH, 1).requires_grad_(False), data)
    assert not takes_inputs(nn.Linear(1, 1), data[:, :1])


S, D = pt.SettingError, pt.DataError
MISTAKES = {
    "other width": Case(lambda: pt.CorrelatedInputs(nn.Linear(3, 1), inputs()), S, "first layer"),
    "no layer": Case(lambda: pt.CorrelatedInputs(nn.Identity(), inputs()), S, "first layer"),
    "one row": Case(lambda: pt.CorrelatedInputs(network(), inputs()[:1]), D, "two rows"),
    "no rows": Case(lambda: pt.CorrelatedInputs(network(), inputs()[:0]), S, "first layer"),
    "a number": Case(lambda: pt.CorrelatedInputs(network(), torch.tensor(1.0)), S, "first layer"),
    "NaN": Case(lambda: pt.CorrelatedInputs(network(), inputs() * float("nan")), D, "finite"),
    "array": Case(lambda: pt.CorrelatedInputs(network(), inputs().numpy()), S, "`inputs` must be"),
    "no neighbours": Case(lambda: pt.CorrelatedInputs(network(), inputs(), neighbours=0), S, "`neighbours`"),
    "strength of zero": Case(lambda: pt.CorrelatedInputs(network(), inputs(), init=0.0), S, "`init`"),
    "decay of zero": Case(lambda: pt.WeightDecay(network(), init=0.0, positive=True), S, "`init`"),
    "negative decay": Case(lambda: pt.WeightDecay(network(), init=-0.1, positive=True), S, "`init`"),
    "positive is a number": Case(lambda: pt.WeightDecay(network(), positive=1), S, "`positive`"),
    "biases is a number": Case(lambda: pt.WeightDecay(network(), biases=0), S, "`biases`"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_clear_error(name: str) -> None:
    check_refused(MISTAKES[name])


@pytest.mark.parametrize("init", [None, 1e-6, 0.3, 50.0])
def test_a_positive_decay_starts_at_init_and_stays_positive(init: float | None) -> None:
    model = network()
    decay = pt.WeightDecay(model, per="tensor", init=init, positive=True)
    params = dict(model.named_parameters())
    for value in decay.decays(params).values():
        assert value.item() == pytest.approx(0.001 if init is None else init, rel=1e-9)
    with torch.no_grad():
        for raw in decay.parameters():
            raw.sub_(100)
    assert all(0 <= value.item() < 1e-6 for value in decay.decays(params).values())
    assert "positive=True" in repr(decay)
    assert "positive" not in repr(pt.WeightDecay(model))


def test_a_positive_decay_has_the_penalty_of_a_free_one() -> None:
    model = network()
    params = dict(model.named_parameters())
    one, other = (pt.WeightDecay(model, init=0.3, positive=positive) for positive in (True, False))
    torch.testing.assert_close(one.penalty(params), other.penalty(params))
    torch.testing.assert_close(softplus(next(one.parameters())), next(other.parameters()))


@pytest.mark.parametrize("name", ["correlated inputs", "per element", "global"])
@pytest.mark.parametrize("estimator", [pt.Truncated(1), pt.Truncated(5)], ids=str)
def test_the_hypergradient(name: str, estimator: Any) -> None:
    model = network()
    hyper = MODULES[name](model) if name != "global" else pt.WeightDecay(model, per="global", init=0.5, positive=True)
    x, y = inputs(), torch.arange(ROWS) % 2
    problem = pt.Problem(model, hyper, train=(x[:30], y[:30]), valid=(x[30:], y[30:]), loss=nn.functional.cross_entropy)
    tuner = pt.Tuner(
        problem,
        inner=pt.SGD(0.1, momentum=0.5),
        inner_steps=5,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.PACBayes(0.1),
        hypergradient=estimator,
        path_hypergradient=estimator,
    )
    check = pt.check_hypergradient(tuner, directions=1)
    assert float(check.promised.norm()) > 1e-6
    assert check.passed, check
