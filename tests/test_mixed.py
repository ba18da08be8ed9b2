"""The mixed derivative by slopes in forward mode, against the double backward that it replaces in large steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.hypergradient import mixed, one_graph
from pactune.hypergradient.mixed import MixedDerivative, slope_gradient

ROWS = 12


class Weights(nn.Module):
    """The weight of an example as a function of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1), nn.Sigmoid()).double()

    def forward(self, losses: Tensor) -> Tensor:
        return self.layers(losses[:, None]).squeeze(1)


def weighted(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (hyper(losses.detach()) * losses).mean()


def weighted_without_grad(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    with torch.no_grad():
        known = 2 * losses
    return (hyper(known) * losses).mean()


class Double(torch.autograd.Function):
    """Twice its input, without a derivative in forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def weighted_backwards(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    losses = Double.apply(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
    return (hyper(losses.detach()) * losses).mean()


def clean(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def tuner(loss: Any = weighted, dropout: float = 0.0, **settings: Any) -> pt.Tuner:
    torch.manual_seed(0)
    x, y = torch.randn(2 * ROWS, 1, 4, 4, dtype=torch.float64), torch.randint(0, 3, (2 * ROWS,))
    parts = [nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model, hyper = nn.Sequential(*parts, nn.Dropout(dropout), nn.Linear(12, 3)).double(), Weights()
    rows = {"train": (x[:ROWS], y[:ROWS]), "valid": (x[ROWS:], y[ROWS:])}
    problem = pt.Problem(model, hyper, train_loss=loss, valid_loss=clean, batch_size=6, **rows)
    defaults: dict[str, Any] = {"inner": pt.SGD(lr=0.1, momentum=0.9), "inner_steps": 3, "seed": 1}
    defaults |= {"objective": pt.ValidationRisk(), "hypergradient": pt.Truncated(1), "engine": "eager"}
    return pt.Tuner(problem, outer=torch.optim.SGD(hyper.parameters(), lr=0.5), **(defaults | settings))


def courses(settings: dict[str, Any], rounds: int = 4) -> list[list[Tensor]]:
    """Return the gradients of some rounds."""
    one, found = tuner(**settings), []
    for _ in range(rounds):
        one.hypergradient()
        found.append([p.grad.clone() for p in one.problem.hyper.parameters() if p.grad is not None])
        one.outer.step()
    return found


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every step count as large; return the numbers of hyperparameters of the slopes that are computed."""
    computed: list[int] = []

    def counted(risk: Any, params: Any, hyper: Any, direction: Any) -> Any:
        computed.append(len(hyper))
        return slope_gradient(risk, params, hyper, direction)

    monkeypatch.setattr(mixed, "MOST_NUMBERS", 0)
    monkeypatch.setattr(one_graph, "MOST_NUMBERS", 0)
    monkeypatch.setattr(mixed, "slope_gradient", counted)
    return computed


SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Adam": {"inner": pt.Adam(lr=0.05)},
    "dropout": {"dropout": 0.3},
    "one step": {"inner_steps": 1},
    "Eq. 5": {"objective": pt.PACBayes(zeta=0.1), "path_hypergradient": pt.Truncated(0)},
    "two steps back": {"hypergradient": pt.Truncated(2)},
    "chains": {"chains": 2, "inner": pt.Langevin(0.1, 100.0)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_slopes_give_the_gradients_of_a_double_backward(name: str, large: list[int]) -> None:
    found = courses(SETTINGS[name])
    assert large
    large.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MixedDerivative, "takes_slopes", lambda self, record: False)
        wanted = courses(SETTINGS[name])
    assert not large
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            assert b.abs().max() > 1e-6
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("loss", "words"),
    [(weighted_without_grad, "forward mode gives another one"), (weighted_backwards, "takes a double backward: ")],
)
def test_a_loss_that_forward_mode_misreads_takes_a_double_backward(
    loss: Any, words: str, large: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        found = courses({"loss": loss})
    assert words in caplog.text
    assert len(large) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MixedDerivative, "takes_slopes", lambda self, record: False)
        wanted = courses({"loss": loss})
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_both_ways_are_compared_in_later_calls_too(large: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    agreeing = mixed._agreeing
    monkeypatch.setattr(mixed, "_agreeing", lambda *both: compared.append(len(large)) or agreeing(*both))
    courses({}, rounds=10)
    assert compared == [0, 1, 2, 4, 8]  # the first call, then the calls 1, 2, 4 and 8 after it


def test_a_loss_that_forward_mode_misreads_later_is_noticed_at_once(large: list[int]) -> None:
    def switched(way: Any) -> list[Tensor]:
        rounds = []

        def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
            return (weighted_without_grad if len(rounds) >= 5 else weighted)(model, batch, hyper)

        with pytest.MonkeyPatch.context() as patch:
            if way == "double backward":
                patch.setattr(MixedDerivative, "takes_slopes", lambda self, record: False)
            one = tuner(loss)
            for _ in range(8):
                one.hypergradient()
                rounds.append([p.grad.clone() for p in one.problem.hyper.parameters() if p.grad is not None])
        return [value for each in rounds for value in each]

    torch.testing.assert_close(switched("slopes"), switched("double backward"), rtol=1e-12, atol=0)
    assert len(large) == 7  # five rounds, and twice where the slope is wrong


def test_small_steps_take_a_graph() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed, "slope_gradient", lambda *_: pytest.fail("a small step needs no slope"))
        courses({}, rounds=2)


def test_a_risk_without_the_parameters_has_no_slope() -> None:
    hyper = {"a": torch.ones(2, dtype=torch.float64)}
    params = {"w": torch.ones(3, dtype=torch.float64)}
    slope, found = slope_gradient(lambda _, lambdas: lambdas["a"].sum(), params, hyper, params)
    assert slope == 0
    assert torch.equal(found["a"], torch.zeros(2, dtype=torch.float64))
