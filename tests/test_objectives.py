"""Each objective against its formula; the regularizer's gradient is that of ζ√Y, no factor lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.bounds.langevin_kl import ChainStep, unequal_path_kl
from pactune.gradient_check.anchored import record_chains
from pactune.objectives import PathContext
from pactune.trees import Params, clip, dot, sub

DOUBLE = torch.float64


def gradients(scale: float, seed: int = 0) -> tuple[Params, Params]:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Params:
        shapes = {"weight": (3, 2), "bias": (3,)}
        return {n: scale * torch.randn(s, generator=generator, dtype=DOUBLE) for n, s in shapes.items()}

    return draw(), draw()


def context(eta: float = 0.1, train: int = 20, valid: int = 20, tau: float | None = None) -> PathContext:
    return PathContext(eta, {}, train, valid, tau)


def doubles(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator, dtype=DOUBLE), torch.randint(0, 3, (rows,), generator=generator)


def tuner_for(objective: Any, *, lam: float = 0.2, valid: Any = None, steps: int = 3, **settings: Any) -> pt.Tuner:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Linear(4, 3, dtype=DOUBLE)
    hyper = pt.WeightDecay(model, per="global", init=lam)
    problem = pt.Problem(
        model, hyper, train=doubles(8, 0), valid=doubles(7, 1) if valid is None else valid, loss=F.cross_entropy
    )
    settings = {"inner": pt.SGD(0.3), "path_hypergradient": pt.Truncated(steps)} | settings
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner_steps=steps, outer=outer, objective=objective, **settings)


def grad_of(tuner: pt.Tuner) -> Tensor:
    tuner.hypergradient()
    grad = tuner.problem.hyper.values["all"].grad
    assert grad is not None
    return grad


def by_hand(objective: str, lam: Tensor, steps: int = 3) -> tuple[Tensor, Tensor]:
    """Return (R_V(θ_T), Σ‖Δ_t‖²) as a differentiable function of λ, everything unrolled in one graph."""
    tuner = tuner_for(pt.PACBayes(1.0))
    params = [p.detach().clone().requires_grad_() for p in tuner.problem.model.parameters()]
    (x, y), (xv, yv) = doubles(8, 0), doubles(7, 1)
    total = torch.zeros((), dtype=DOUBLE)
    for _ in range(steps):
        train = torch.autograd.grad(F.cross_entropy(F.linear(x, *params), y), params, create_graph=True)
        valid = torch.autograd.grad(F.cross_entropy(F.linear(xv, *params), yv), params, create_graph=True)
        whole = [g + lam * p for g, p in zip(train, params, strict=True)]
        other = valid if objective == "pac-bayes" else [torch.zeros_like(v) for v in valid]
        total = total + sum(((w - v) ** 2).sum() for w, v in zip(whole, other, strict=True))
        params = [p - 0.3 * w for p, w in zip(params, whole, strict=True)]
    risk = F.cross_entropy(F.linear(x if objective == "same" else xv, *params), y if objective == "same" else yv)
    return risk, total


class WithoutValidGradient(pt.PACBayes):
    """Eq. 5 with a validation gradient of zero, which is the regularizer of `Flatness`."""

    uses_valid_gradient = False


@pytest.mark.parametrize("zeta", [0.0, 0.3, 7.0])
@pytest.mark.parametrize(
    ("make", "kind"), [(pt.PACBayes, "pac-bayes"), (pt.Flatness, "flatness"), (WithoutValidGradient, "flatness")]
)
def test_value_and_gradient_are_those_of_risk_plus_zeta_root(make: Callable[..., Any], kind: str, zeta: float) -> None:
    lam = torch.tensor(0.2, dtype=DOUBLE, requires_grad=True)
    risk, total = by_hand(kind, lam)
    expected = torch.autograd.grad(risk + zeta * total.sqrt(), lam)[0]
    tuner = tuner_for(make(zeta), hypergradient=pt.Truncated(3))
    value = tuner.hypergradient()
    assert value.risk == pytest.approx(float(risk), rel=1e-12)
    assert value.regularizer == pytest.approx(float(total.sqrt()), rel=1e-12)
    assert value.total == pytest.approx(float(risk + zeta * total.sqrt()), rel=1e-12)
    torch.testing.assert_close(tuner.problem.hyper.values["all"].grad, expected, rtol=1e-10, atol=0)


def test_same_distribution_has_the_training_risk() -> None:
    lam = torch.tensor(0.2, dtype=DOUBLE)
    train_risk = F.cross_entropy
    tuner = tuner_for(pt.SameDistribution(0.5))
    value = tuner.hypergradient()
    x, y = doubles(8, 0)
    with torch.no_grad():
        expected = train_risk(tuner.problem.model(x), y)
    assert value.risk == pytest.approx(float(expected), rel=1e-12)  # at θ_T and without the penalty
    assert value.regularizer == pytest.approx(float(by_hand("pac-bayes", lam.requires_grad_())[1].sqrt()), rel=1e-12)


def same_distribution(hyper: nn.Module, model: nn.Module, **losses: Any) -> pt.Tuner:
    problem = pt.Problem(model, hyper, train=doubles(8, 0), valid=doubles(7, 1), **losses)
    outer = torch.optim.Adam(hyper.parameters(), lr=0.3)
    return pt.Tuner(problem, inner=pt.SGD(0.3), inner_steps=5, outer=outer, objective=pt.SameDistribution(0.01))


def linear() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Linear(4, 3, dtype=DOUBLE)


def unweighted_risk(model: nn.Module) -> float:
    x, y = doubles(8, 0)
    with torch.no_grad():
        return float(F.cross_entropy(model(x), y))


def test_same_distribution_does_not_weigh_its_first_term() -> None:
    """A weighted risk is least at weights of 0, whatever the model learns."""
    hyper = pt.ExampleWeights(8).double()
    with torch.no_grad():
        hyper.logits.copy_(torch.linspace(-1, 1, 8))
    tuner = same_distribution(hyper, linear(), loss=F.cross_entropy)
    assert tuner.hypergradient().risk == pytest.approx(unweighted_risk(tuner.problem.model), rel=1e-12)
    result = tuner.fit(40, progress=False)
    assert float(hyper.weights().mean()) > 0.5
    assert result.rows[-1]["risk"] == pytest.approx(unweighted_risk(tuner.problem.model), rel=1e-12)


class Value(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=DOUBLE))


def scaled(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return hyper.value.exp() * F.cross_entropy(model(batch[0]), batch[1])


def smoothed(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    scores = model(batch[0]).log_softmax(1)
    share = hyper.value.sigmoid()
    return (1 - share) * F.nll_loss(scores, batch[1]) - share * scores.mean()


def plain(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("train_loss", [scaled, smoothed])
def test_same_distribution_judges_training_rows_by_the_validation_loss(train_loss: Any) -> None:
    """λ may shape the training loss; the risk that it is to minimise is that of the validation loss."""
    tuner = same_distribution(Value(-1.0), linear(), train_loss=train_loss, valid_loss=plain)
    assert tuner.hypergradient().risk == pytest.approx(unweighted_risk(tuner.problem.model), rel=1e-12)


def test_same_distribution_needs_training_rows_that_the_validation_loss_can_read() -> None:
    problem = pt.Problem(
        linear(),
        hyper := Value(-1.0),
        train=(*doubles(8, 0), torch.arange(8)),
        valid=doubles(7, 1),
        train_loss=scaled,
        valid_loss=lambda model, batch, hyper: (lambda x, y: F.cross_entropy(model(x), y))(*batch),
    )
    outer = torch.optim.Adam(hyper.parameters(), lr=0.3)
    tuner = pt.Tuner(problem, inner=pt.SGD(0.3), inner_steps=2, outer=outer, objective=pt.SameDistribution(0.01))
    with pytest.raises(pt.SettingError, match="the validation loss of the training rows"):
        tuner.hypergradient()


@pytest.mark.parametrize("estimator", [pt.Truncated(0), pt.Truncated(2), pt.Windowed(3), pt.ForwardMode()], ids=str)
@pytest.mark.parametrize("chain_mean", ["inside", "outside"])
def test_no_incoherence_gives_gradient_zero_and_never_nan(estimator: Any, chain_mean: Any) -> None:
    """Train and validation set are the same and λ = 0, so every Δ_t is exactly 0."""
    same = doubles(8, 0)
    with_path = tuner_for(
        pt.PACBayes(5.0, chain_mean=chain_mean), lam=0.0, valid=same, path_hypergradient=estimator, chains=2
    )
    value = with_path.hypergradient()
    gradient = with_path.problem.hyper.values["all"].grad
    risk_alone = grad_of(tuner_for(pt.ValidationRisk(), lam=0.0, valid=same, chains=2))
    assert value.regularizer == 0.0
    # forward mode runs other kernels, which round in another way on some processors
    torch.testing.assert_close(gradient, risk_alone, rtol=1e-13, atol=0.0)


def test_no_incoherence_in_the_online_algorithm() -> None:
    tuner = tuner_for(pt.PACBayes(5.0), lam=0.0, valid=doubles(8, 0), path_hypergradient=pt.Truncated(0), online=True)
    result = tuner.fit(1, progress=False)
    assert result.rows[0]["regularizer"] == 0.0
    assert float(tuner.problem.hyper.values["all"]) == 0.0


def test_both_clips_at_one_give_the_cosine() -> None:
    """Observation A.1: 2 − 2cos where both gradients are longer than 1."""
    train, valid = gradients(3.0)
    assert dot(train, train) > 1
    assert dot(valid, valid) > 1
    cosine = dot(train, valid) / (dot(train, train) * dot(valid, valid)).sqrt()
    found = pt.PACBayes(1.0, clip_train=1.0, clip_valid=1.0).summand(train, valid, context())
    torch.testing.assert_close(found, 2 - 2 * cosine, rtol=1e-12, atol=0)


def test_clips_leave_short_gradients_alone() -> None:
    train, valid = gradients(0.01)
    clipped = pt.PACBayes(1.0, clip_train=1.0, clip_valid=1.0).summand(train, valid, context())
    torch.testing.assert_close(clipped, pt.PACBayes(1.0).summand(train, valid, context()), rtol=1e-12, atol=0)


def test_one_clip_leaves_the_other_gradient_alone() -> None:
    train, valid = gradients(3.0)
    shorter = {name: v * (0.5 / dot(valid, valid).sqrt()) for name, v in valid.items()}
    difference = sub(train, shorter)
    found = pt.PACBayes(1.0, clip_valid=0.5).summand(train, valid, context())
    torch.testing.assert_close(found, dot(difference, difference), rtol=1e-12, atol=0)


CLIPS: list[dict[str, float]] = [{}, {"clip_train": 0.5}, {"clip_valid": 0.5}, {"clip_train": 0.5, "clip_valid": 0.7}]


@pytest.mark.parametrize("clips", CLIPS, ids=str)
def test_measure_has_the_value_and_the_derivatives_of_the_summand(clips: dict[str, float]) -> None:
    """A clip on one side alone acts too: the closed form is for no clip at all."""
    train, valid = gradients(1.0)
    objective = pt.PACBayes(1.0, **clips)
    fast = objective.measure(train, valid, context())
    slow = super(pt.PACBayes, objective).measure(train, valid, context())
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    if clips:
        assert float(fast.summand) < 0.9 * float(pt.PACBayes(1.0).measure(train, valid, context()).summand)


def test_unequal_steps_with_equal_steps_is_a_quarter_eta() -> None:
    train, valid = gradients(1.0)
    difference = sub(train, valid)
    found = pt.UnequalSteps(valid_lr=0.1, zeta="theory").summand(train, valid, context(eta=0.1))
    torch.testing.assert_close(found, 0.1 / 4 * dot(difference, difference), rtol=1e-12, atol=0)


@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize(("tau", "valid_tau"), [(None, None), (7.0, None), (7.0, 7.0), (500.0, 40.0), (None, 40.0)])
def test_unequal_steps_is_the_divergence_of_two_gaussian_steps(
    clip: float | None, tau: float | None, valid_tau: float | None
) -> None:
    """KL of N(θ − η_T∇R_T, 2η_T/τ_T) from N(θ − η_V clip(∇R_V), 2η_V/τ_V), by torch.distributions."""
    train, valid = gradients(1.0)
    eta, valid_lr, rows, valid_rows = 0.3, 0.1, 30, 12
    shrink = min(1.0, clip / float(dot(valid, valid).sqrt())) if clip else 1.0

    def step(gradient: Params, size: float, inverse_temperature: float, factor: float) -> MultivariateNormal:
        mean = -size * factor * torch.cat([g.reshape(-1) for g in gradient.values()])
        return MultivariateNormal(mean, 2 * size / inverse_temperature * torch.eye(len(mean), dtype=DOUBLE))

    posterior, prior = step(train, eta, tau or rows, 1.0), step(valid, valid_lr, valid_tau or valid_rows, shrink)
    objective = pt.UnequalSteps(valid_lr=valid_lr, clip_valid=clip, valid_inverse_temperature=valid_tau, zeta="theory")
    found = objective.summand(train, valid, context(eta, rows, valid_rows, tau))
    torch.testing.assert_close(found, kl_divergence(posterior, prior) / valid_rows, rtol=1e-10, atol=0)


def test_unequal_steps_is_the_divergence_of_the_chain_that_is_run() -> None:
    """The library's own path divergence, with the temperature of the Langevin chain; n_T = 8 and n_V = 7."""
    tau, eta, valid_lr, steps = 300.0, 0.3, 0.1, 3
    tuner = tuner_for(
        pt.UnequalSteps(valid_lr=valid_lr, zeta="theory"), inner=pt.Langevin(eta, inverse_temperature=tau)
    )
    (path,) = record_chains(tuner.outer_run.plan(1.0), tuner.outer_run.chains.parts[0], tuner.problem.hyperparameters())
    pairs = [_pair(tuner.problem, state.params) for state in path.states[:steps]]
    drifts = [sum(float(((eta * a - valid_lr * b) ** 2).sum()) for a, b in zip(*pair, strict=True)) for pair in pairs]
    chain = [ChainStep(drift, eta, valid_lr) for drift in drifts]
    expected = unequal_path_kl(chain, train_tau=tau, valid_tau=7.0, parameters=15) / 7
    assert tuner.hypergradient().regularizer ** 2 == pytest.approx(expected, rel=1e-10)


def _pair(problem: pt.Problem, params: Params) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of both risks, the training one with its penalty, as lists."""
    leaves = [p.detach().requires_grad_() for p in params.values()]
    found = []
    for x, y in (doubles(8, 0), doubles(7, 1)):
        found.append(list(torch.autograd.grad(F.cross_entropy(F.linear(x, *leaves), y), leaves)))
    return [g + 0.2 * p.detach() for g, p in zip(found[0], leaves, strict=True)], found[1]


def test_mean_outside_the_root_is_at_most_the_mean_inside() -> None:
    """Jensen; equality needs chains that are all alike."""

    def regularizers(chain_mean: Any, chains: int) -> float:
        tuner = tuner_for(pt.PACBayes(1.0, chain_mean=chain_mean), chains=chains, path_hypergradient=pt.Truncated(0))
        return tuner.hypergradient().regularizer

    assert regularizers("outside", 4) < regularizers("inside", 4) - 1e-6
    assert regularizers("outside", 1) == pytest.approx(regularizers("inside", 1), rel=1e-14)


def test_theory_zeta() -> None:
    """ζ² = βη/4 with β = τ/n of the sample that the bound is on, 1 without a temperature."""
    assert tuner_for(pt.PACBayes("theory")).zeta == pytest.approx(math.sqrt(0.3 / 4))
    warm = pt.Langevin(0.3, inverse_temperature=70.0)
    assert tuner_for(pt.PACBayes("theory"), inner=warm).zeta == pytest.approx(math.sqrt(70 / 7 * 0.3 / 4))
    assert tuner_for(pt.SameDistribution("theory"), inner=warm).zeta == pytest.approx(math.sqrt(70 / 8 * 0.3 / 4))
    cold = pt.Langevin(0.3, inverse_temperature=math.inf)
    assert tuner_for(pt.PACBayes("theory"), inner=cold).zeta == pytest.approx(math.sqrt(0.3 / 4))
    assert tuner_for(pt.UnequalSteps(valid_lr=0.1, zeta="theory"), inner=warm).zeta == 1.0


def test_theory_zeta_needs_a_learning_rate_at_the_first_step() -> None:
    rising = pt.SGD(lr=lambda step: 0.1 * step)
    with pytest.raises(pt.SettingError, match=r"learning rate of the first step, which is 0.*pass a number"):
        tuner_for(pt.PACBayes("theory"), inner=rising).hypergradient()
    assert tuner_for(pt.UnequalSteps(valid_lr=0.1, zeta="theory"), inner=rising).zeta == 1.0
    falling = pt.SGD(lr=lambda step: 0.3 / (1 + step))
    assert tuner_for(pt.PACBayes("theory"), inner=falling).zeta == pytest.approx(math.sqrt(0.3 / 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [1e-30, 1.0, 300.0, 1e20, 1e200, math.inf])
@pytest.mark.parametrize("size", [0.0, 1.0, 300.0])
def test_clipping_neither_overflows_nor_divides_by_zero(dtype: torch.dtype, bound: float, size: float) -> None:
    """γ² overflowed for γ = 1e20 in float32 and 300 in float16, and the gradient became zero."""
    given = {str(i): torch.full((4,), size, dtype=dtype) for i in range(8)}
    length = size * math.sqrt(32)
    found = clip(given, bound)
    for value in found.values():
        assert value.dtype == dtype
        torch.testing.assert_close(value, torch.full((4,), size / max(1.0, length / bound), dtype=dtype))
