"""DP-SGLD: what a step does, what it refuses, and an attack on neighbouring data sets."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pactune.errors import SettingError
from pactune.privacy import DPSGLD, Privacy, epsilon_lower_bound, membership_audit, secret_generator


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = seeded(3)
    return torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def test_a_step_is_the_mean_of_clipped_gradients_plus_noise() -> None:
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
