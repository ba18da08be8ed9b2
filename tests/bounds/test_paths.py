"""Paired Langevin chains: the recorded log-ratio is that of the Gaussian densities of the path."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.bounds import path_kl, path_log_ratio
from pactune.bounds.coupled_langevin import CoupledChains, run_coupled
from pactune.bounds.drifts import train_side, validation_side
from pactune.errors import DivergenceError, SettingError
from pactune.streams import Streams
from pactune.trees import Params

M, T = 3, 7


def curved(params: Params) -> tuple[Params, Params]:
    """Two drifts that are not linear, on two tensors."""
    posterior = {name: torch.sin(p) + 0.3 * p for name, p in params.items()}
    prior = {name: torch.cos(p) * 0.5 + p for name, p in params.items()}
    return posterior, prior


def start() -> Params:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (M, 2, 3), "b": (M, 4)}
    return {name: torch.randn(*s, generator=generator, dtype=torch.float64) for name, s in shapes.items()}


def log_density(moves: Tensor, mean: Tensor, variance: float) -> Tensor:
    """Return log N(moves; mean, variance·I), summed over everything but the chains."""
    normal = torch.distributions.Normal(mean, variance**0.5)
    return normal.log_prob(moves).reshape(M, -1).sum(1)


def test_log_ratio_equals_that_of_the_densities() -> None:
    lr, tau = 0.1, 20.0
    visited = run_coupled(CoupledChains(lr, tau, T), start(), curved, Streams(3), record_at=range(T + 1))
    total = torch.zeros(M, dtype=torch.float64)
    for before, after in itertools.pairwise(visited):
        posterior, prior = curved(before.params)
        for name, p in before.params.items():
            moved = after.params[name]
            total += log_density(moved, p - lr * posterior[name], 2 * lr / tau)
            total -= log_density(moved, p - lr * prior[name], 2 * lr / tau)
    torch.testing.assert_close(visited[-1].log_ratios, total, rtol=1e-9, atol=1e-9)
    assert float(total.abs().min()) > 0.1


def test_numbers_and_tensors_agree() -> None:
    paths = run_coupled(CoupledChains(0.1, 20.0, T), start(), curved, Streams(3))[0]
    squares, products = float(paths.squares[0]), float(paths.products[0])
    assert path_log_ratio(squares, products, 0.1, 20.0) == pytest.approx(float(paths.log_ratios[0]))
    assert path_kl(squares, 0.1, 20.0) == pytest.approx(float(paths.kl[0]))


def test_chains_may_have_settings_of_their_own_and_a_shorter_path_is_a_beginning() -> None:
    lr, tau = torch.tensor([0.1, 0.2, 0.1]), torch.tensor([20.0, 5.0, 20.0])
    both = run_coupled(CoupledChains(lr, tau, T), start(), curved, Streams(3), record_at=[2, T])
    one = run_coupled(CoupledChains(0.1, 20.0, T), start(), curved, Streams(3), record_at=[2, T])
    short = run_coupled(CoupledChains(0.1, 20.0, 2), start(), curved, Streams(3))[0]
    for found, alone in zip(both, one, strict=True):
        torch.testing.assert_close(found.log_ratios[[0, 2]], alone.log_ratios[[0, 2]])
        torch.testing.assert_close(found.pick(slice(2, 3)).log_ratios, alone.log_ratios[2:])
    torch.testing.assert_close(one[0].params, short.params)
    assert not torch.allclose(both[1].log_ratios[1], one[1].log_ratios[1])


def test_equal_drifts_have_no_ratio() -> None:
    paths = run_coupled(CoupledChains(0.1, 20.0, T), start(), lambda p: (p, p), Streams(0))[0]
    assert float(paths.log_ratios.abs().max()) == 0.0


def test_refusals() -> None:
    with pytest.raises(SettingError, match="inverse_temperature"):
        CoupledChains(0.1, float("inf"), 3)
    with pytest.raises(SettingError, match="record_at"):
        run_coupled(CoupledChains(0.1, 1.0, 3), start(), curved, Streams(0), record_at=[4])
    with pytest.raises(DivergenceError, match="not finite"):
        run_coupled(CoupledChains(0.1, 1.0, 3), start(), lambda p: ({n: v / 0 for n, v in p.items()}, p), Streams(0))


def problem(batch_size: int | None = None) -> pt.Problem:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (30,), generator=generator)
    model = torch.nn.Linear(4, 3, dtype=torch.float64)
    hyper = pt.WeightDecay(model, per="tensor", init=0.2)
    return pt.Problem(
        model, hyper, train=(x[:12], y[:12]), valid=(x[12:], y[12:]), loss=F.cross_entropy, batch_size=batch_size
    )


def by_hand(p: pt.Problem, params: Params, chain: int, rows: str, decay: dict[str, float]) -> Params:
    """Return the gradient of one chain by plain autograd."""
    values = {name: v[chain].clone().requires_grad_() for name, v in params.items()}
    x, y = next(iter(getattr(p, rows).epoch())).data
    risk = F.cross_entropy(x @ values["weight"].T + values["bias"], y)
    risk = risk + sum(0.5 * decay[name] * v.square().sum() for name, v in values.items())
    return dict(zip(values, torch.autograd.grad(risk, list(values.values())), strict=True))


@pytest.mark.parametrize("batch_size", [None, 5])
def test_drifts_of_both_modes(batch_size: int | None) -> None:
    p = problem(batch_size)
    generator = torch.Generator().manual_seed(2)
    params = {
        "weight": torch.randn(2, 3, 4, generator=generator, dtype=torch.float64),
        "bias": torch.randn(2, 3, generator=generator, dtype=torch.float64),
    }
    tuned = p.hyperparameters()
    other = {name: value + 0.3 for name, value in tuned.items()}
    a, b = {"weight": 0.2, "bias": 0.2}, {"weight": 0.5, "bias": 0.5}
    full = problem()
    for union in (False, True):
        posterior, prior = train_side(p, prior_hyper=other, posterior_hyper=tuned, union=union)(params)
        for chain in range(2):
            on_train, on_valid = (by_hand(full, params, chain, s, a) for s in ("train", "valid"))
            for name in params:
                mixed = 0.4 * on_train[name] + 0.6 * on_valid[name] if union else on_train[name]
                torch.testing.assert_close(posterior[name][chain], mixed)
                torch.testing.assert_close(prior[name][chain], by_hand(full, params, chain, "valid", b)[name])
    posterior, prior = validation_side(p, default_hyper=other, tuned_hyper=tuned)(params)
    for name in params:
        torch.testing.assert_close(prior[name] - posterior[name], 0.3 * params[name])
        torch.testing.assert_close(posterior[name][1], by_hand(full, params, 1, "train", a)[name])


def test_drifts_where_the_loss_knows_the_hyperparameters() -> None:
    x, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    model, weights = torch.nn.Linear(4, 3), pt.ExampleWeights(10)
    p = pt.Problem(model, weights, train=(x[:10], y[:10]), valid=(x[10:], y[10:]), loss=F.cross_entropy)
    params = {name: value[None].repeat(2, *[1] * value.ndim) for name, value in p.parameters().items()}
    default = p.hyperparameters()
    tuned = {"logits": torch.linspace(-2, 2, 10)}
    posterior, prior = validation_side(p, default_hyper=default, tuned_hyper=tuned)(params)
    assert float((posterior["weight"] - prior["weight"]).abs().max()) > 1e-3
    posterior, prior = train_side(p, prior_hyper=default, posterior_hyper=tuned, union=True)(params)
    assert posterior["weight"].shape == prior["weight"].shape == (2, 3, 4)
