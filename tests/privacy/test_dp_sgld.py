"""DP-SGLD: what a step does, what it refuses, and an attack on neighbouring data sets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pactune.errors import SettingError
from pactune.privacy import DPSGLD, Privacy, epsilon_lower_bound, membership_audit, secret_generator
from pactune.privacy.per_example import clip_row


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = seeded(3)
    return torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def test_a_step_is_the_mean_of_clipped_gradients_plus_noise() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # one start in sixty has no gradient that is long enough for the clip
        model, (x, y) = nn.Linear(4, 3), data(6)
    private = DPSGLD(lr=0.1, clip=0.5, batch_size=6, inverse_temperature=50.0)
    run = private.run(model, (x, y), loss=F.cross_entropy, generator=seeded(1), chains=2)
    clipped = []
    for i in range(6):
        found = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        length = math.sqrt(sum(float(g.square().sum()) for g in found))
        clipped.append([g * min(1.0, 0.5 / length) for g in found])
    assert any(g[0].norm() > 0.45 for g in clipped), "a clip that never acts would prove nothing"
    generator = seeded(1)
    for _ in range(2):
        torch.randperm(6, generator=generator)
    for i, (name, p) in enumerate(model.named_parameters()):
        noise = torch.randn(2, *p.shape, generator=generator)
        drift = torch.stack([g[i] for g in clipped]).mean(0)
        torch.testing.assert_close(run.params[name], p - 0.1 * drift + math.sqrt(0.2 / 50) * noise)


def test_batches_are_disjoint_and_each_chain_has_an_order_of_its_own() -> None:
    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(12))

        def forward(self, x: Tensor) -> Tensor:
            return (self.w * x).sum(1)

    private = DPSGLD(lr=1.0, clip=10.0, batch_size=4, inverse_temperature=1e30)
    run = private.run(
        Spy(), (torch.eye(12), torch.zeros(12)), loss=lambda p, _: p.mean(), generator=seeded(2), chains=3
    )
    # every row pushed its own weight once by η/h, so one pass over disjoint batches visits each row exactly once
    torch.testing.assert_close(run.params["w"], torch.full((3, 12), -0.25))
    assert run.steps == 3
    short = private.run(
        Spy(), (torch.eye(12), torch.zeros(12)), loss=lambda p, _: p.mean(), generator=seeded(2), chains=3, steps=1
    )
    assert len({tuple((row < -0.1).nonzero().flatten().tolist()) for row in short.params["w"]}) > 1


def test_refusals() -> None:
    private, (x, y) = DPSGLD(lr=0.1, clip=1.0, batch_size=4), data(12)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.raises(SettingError, match="BatchNorm mixes the examples"):
        private.run(model, (x, y), loss=F.cross_entropy, generator=seeded())
    with pytest.raises(SettingError, match="every row may be used once"):
        private.run(nn.Linear(4, 3), (x, y), loss=F.cross_entropy, generator=seeded(), steps=4)
    with pytest.raises(SettingError, match="no default seed"):
        private.run(nn.Linear(4, 3), (x, y), loss=F.cross_entropy, generator=None)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="`clip` must be positive"):
        DPSGLD(lr=0.1, clip=0.0, batch_size=4)


def test_secret_generators_differ() -> None:
    assert secret_generator().initial_seed() != secret_generator().initial_seed()


def test_the_privacy_of_a_run_is_that_of_its_settings() -> None:
    run = DPSGLD(lr=0.1, clip=1.0, batch_size=4).run(
        nn.Linear(4, 3), data(12), loss=F.cross_entropy, generator=seeded(), chains=2
    )
    assert run.privacy == Privacy(4, 1.0, 0.1, 12.0, chains=2)


class Mean(nn.Module):
    """θ with the loss −θ·x, whose gradient −x is as long as one likes."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return -(x * self.theta).sum(1)


def attack(private: DPSGLD, trials: int) -> tuple[Tensor, Tensor]:
    """Return the outputs on two neighbours: the first row is +100 or −100, clipped to ±γ; all others are 0."""
    outputs = []
    for seed, sign in enumerate((1.0, -1.0)):
        x = torch.zeros(8, 1)
        x[0] = 100 * sign
        run = private.run(
            Mean(), (x, torch.zeros(8)), loss=lambda p, _: p.mean(), generator=seeded(seed), chains=trials
        )
        outputs.append(run.params["theta"][:, 0])
    return outputs[0], outputs[1]


def test_membership_attack_stays_under_the_claim_and_over_the_papers() -> None:
    """At (ε, δ) = (1, 1e-3) the paper's step size really costs ε = 1.45; 150,000 outputs of each prove more than 1."""
    delta, rows = 1e-3, 8  # one batch: every further step would only add noise to what the attacker sees
    step = rows * 1.0 / math.log(1.25 / delta)
    private = DPSGLD(lr=step, clip=1.0, batch_size=rows)
    claimed = private.privacy(rows).epsilon(delta)
    proved = membership_audit(*attack(private, 150_000), delta)
    assert 1.0 < proved < claimed
    assert proved == pytest.approx(1.18, abs=0.01)  # docs/guides/privacy.md says so
    assert proved > 0.6 * claimed, "an attack that proves next to nothing would let anything pass"


def test_the_audit_sees_a_broken_mechanism() -> None:
    """A clip of five times the claimed one must be caught."""
    private = DPSGLD(lr=0.3, clip=1.0, batch_size=8)
    claimed = private.privacy(8).epsilon(1e-3)
    loose = DPSGLD(lr=0.3, clip=5.0, batch_size=8)
    assert membership_audit(*attack(loose, 20_000), 1e-3) > claimed


def test_lower_bound_by_hand() -> None:
    assert epsilon_lower_bound(50, 50, 100, 0.0) == 0.0
    assert 0 < epsilon_lower_bound(900, 100, 1000, 0.0) < math.log(9)
    with pytest.raises(SettingError, match="between 0 and trials"):
        epsilon_lower_bound(2, 1, 1, 0.0)


HUGE = torch.finfo(torch.float32).max
STRANGE: dict[str, tuple[float, float]] = {
    "norm that overflows": (HUGE, 0.0),
    "norm that overflows, other sign": (-HUGE, 0.0),
    "infinite input": (math.inf, 0.0),
    "NaN input": (math.nan, 0.0),
    "NaN target": (1.0, math.nan),
    "infinite target": (1.0, math.inf),
    "target that makes the loss raise": (1.0, -1.0),
}


class TwoWeights(nn.Module):
    """θ·x with two equal inputs, so that the squares of a huge gradient overflow and so does their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.theta).sum(1)


def picky(prediction: Tensor, target: Tensor) -> Tensor:
    """Return a loss that raises for a target of −1, as an embedding or a class number out of range does."""
    allowed = F.nll_loss(torch.zeros(1, 3), torch.where(target < 0, 9, 0))  # class 9 of 3 raises
    return (prediction * (1 + target - target) + 0.0 * allowed).mean()


def strange_outputs(name: str | None, chains: int, seed: int) -> Tensor:
    """Return θ_1 of every chain. The first row is strange, or zeros where there is no name; all others are zeros."""
    x, y = torch.zeros(8, 2), torch.zeros(8)
    if name is not None:
        x[0], y[0] = STRANGE[name]
    private = DPSGLD(lr=0.3, clip=1.0, batch_size=8)
    run = private.run(TwoWeights(), (x, y), loss=picky, generator=seeded(seed), chains=chains)
    return run.params["theta"]


@pytest.mark.parametrize("name", STRANGE)
def test_no_row_moves_the_output_by_more_than_a_clipped_one(name: str) -> None:
    """The same order and noise, so that the difference is the row's own: at most ηγ/h, and no NaN or exception."""
    found, without = strange_outputs(name, 2, 0), strange_outputs(None, 2, 0)
    moved = (found - without).norm(dim=1)
    assert bool((moved <= 0.3 / 8 + 1e-7).all())
    assert bool((moved > 0.03).all()) == ("overflows" in name)


@pytest.mark.parametrize("name", ["norm that overflows", "infinite input", "NaN target"])
def test_audit_proves_no_more_than_the_claim_from_a_strange_row(name: str) -> None:
    outputs = [strange_outputs(one, 20_000, seed).sum(1) for seed, one in enumerate((name, None))]
    claimed = DPSGLD(lr=0.3, clip=1.0, batch_size=8).privacy(8).epsilon(1e-3)
    assert membership_audit(outputs[0], outputs[1], 1e-3) < claimed


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_audit_sees_an_output_that_is_not_finite(bad: float) -> None:
    plain = torch.randn(2000, generator=seeded())
    spoiled = torch.where(torch.arange(2000) % 2 == 0, torch.tensor(bad), plain)
    assert membership_audit(spoiled, plain, 1e-3) > 2.0
    assert membership_audit(plain, spoiled, 1e-3) > 2.0
    assert membership_audit(torch.full((2000,), bad), torch.full((2000,), bad), 1e-3) == 0.0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_clipped_row_is_never_longer_than_the_bound(seed: int, dtype: torch.dtype) -> None:
    """Exactly, rounding included: the norm is taken by math.fsum of exact products' roundings in float64."""
    generator = seeded(seed)
    size = 10.0 ** (torch.rand(50, generator=generator, dtype=torch.float64) * 80 - 40)
    values = (size * torch.randn(50, generator=generator, dtype=torch.float64)).to(dtype)
    gradient = {"a": values[:20].reshape(4, 5), "b": values[20:]}
    for bound in (1e-6, 0.3, 1.0, 1e6):
        clipped = torch.cat([g.reshape(-1) for g in clip_row(gradient, bound).values()])
        assert math.sqrt(math.fsum(float(v) ** 2 for v in clipped)) <= bound
        if bool(values.isfinite().all()) and float(values.double().norm()) > bound:
            assert float(clipped.norm()) > 0.999998 * bound  # and hardly shorter


def test_a_short_row_is_left_alone() -> None:
    gradient = {"a": torch.tensor([1e-40, 3e-3]), "b": torch.tensor(-2e-3)}
    for name, value in clip_row(gradient, 1.0).items():
        torch.testing.assert_close(value, gradient[name].double(), rtol=1e-14, atol=0)
    assert float(clip_row({"a": torch.zeros(3)}, 1.0)["a"].abs().sum()) == 0.0


def test_a_mistake_in_the_loss_is_told_before_any_row_is_read() -> None:
    private, (x, y) = DPSGLD(lr=0.1, clip=1.0, batch_size=4), data(12)
    for model, loss in (
        (nn.Linear(5, 3), F.cross_entropy),
        (nn.Linear(4, 3), lambda p, t: F.cross_entropy(p, t, reduction="none")[:, None]),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout()), F.cross_entropy),
    ):
        with pytest.raises(SettingError, match="public row"):
            private.run(model, (x, y), loss=loss, generator=seeded())


def test_one_label_out_of_range_does_not_stop_the_run() -> None:
    x, y = data(12)
    y[3] = 77
    private = DPSGLD(lr=0.1, clip=1.0, batch_size=4)
    run = private.run(nn.Linear(4, 3), (x, y), loss=F.cross_entropy, generator=seeded(), chains=2)
    assert all(bool(p.isfinite().all()) for p in run.params.values())


def test_a_public_row_of_your_own() -> None:
    def positive(prediction: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(prediction[:, None].expand(1, 3), (target - 1).long())  # raises for a target of 0

    x, y = torch.zeros(8, 2), torch.ones(8)
    private = DPSGLD(lr=0.1, clip=1.0, batch_size=4)
    with pytest.raises(SettingError, match="public row"):
        private.run(TwoWeights(), (x, y), loss=positive, generator=seeded())
    row = (torch.zeros(2), torch.ones(()))
    assert private.run(TwoWeights(), (x, y), loss=positive, generator=seeded(), public_row=row).steps == 2


@pytest.mark.parametrize("chains", [1, 2])
def test_a_model_that_fails_in_the_step_alone_is_told_too(chains: int) -> None:
    """Power iteration writes into a buffer, which fails with stacked chains: no row added anything, in silence."""
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    with pytest.raises(SettingError, match="public row"):
        DPSGLD(0.1, 1.0, 4).run(model, data(), loss=F.cross_entropy, generator=seeded(), chains=chains)


def test_frozen_parameters_are_not_trained() -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3))
    run = DPSGLD(0.1, 1.0, 4).run(model, data(), loss=F.cross_entropy, generator=seeded())
    assert sorted(run.params) == ["1.bias", "1.weight"]


@pytest.mark.parametrize("row", ["a", (torch.ones(5), torch.tensor(1)), (torch.ones(4),), (None, None), torch.ones(2)])
def test_a_public_row_of_another_shape_is_refused(row: Any) -> None:
    with pytest.raises(SettingError, match=r"`public_row` must be an input of shape \(4,\)"):
        DPSGLD(0.1, 1.0, 4).run(nn.Linear(4, 3), data(), loss=F.cross_entropy, generator=seeded(), public_row=row)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(SettingError, match="`model` must have a parameter"):
        DPSGLD(0.1, 1.0, 4).run(nn.Identity(), data(), loss=F.cross_entropy, generator=seeded())
