"""Recurrent layers compute with a list of weights of their own; tensors that are put in place have to reach it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_train_as_in_a_plain_loop(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    model, twin = Recurrent(kind), Recurrent(kind)
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(12, 5, 3), torch.arange(12) % 2
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), loss=F.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.5), inner_steps=20, outer=outer, objective=pt.PACBayes(zeta=0.1))
    tuner.hypergradient()
    plain = torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(20):
        plain.zero_grad()
        F.cross_entropy(twin(x[:6]), y[:6]).backward()
        plain.step()
    for name, value in twin.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-6), name
    assert torch.allclose(model(x), twin(x), atol=1e-6)


def test_hypergradient_through_a_recurrent_layer() -> None:
    torch.manual_seed(0)
    model = Recurrent(nn.LSTM)
    x, y = torch.randn(12, 5, 3), torch.arange(12) % 2
    hyper = pt.WeightDecay(model, per="tensor", init=0.1)
    problem = pt.Problem(model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), loss=F.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    exact = pt.Windowed(4)
    tuner = pt.Tuner(
        problem, inner=pt.SGD(lr=0.5), inner_steps=4, outer=outer, objective=pt.PACBayes(zeta=0.1),
        hypergradient=exact, path_hypergradient=exact,
    )  # fmt: skip
    assert pt.check_hypergradient(tuner, directions=1).error < 1e-6
