"""A loop of one's own over `tuner.hypergradient()`: nothing is set up again from call to call."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.problem import seen_data
from pactune.problem.problem import Problem
from pactune.tuning import outer_run


class Mixed(nn.Module):
    """A mixture of two operations, whose weights are the architecture, as in DARTS."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        self.architecture = nn.Module()
        self.architecture.weights = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.architecture.weights.softmax(0)
        return a * self.first(x) + b * self.second(x)


def make() -> tuple[pt.Tuner, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Mixed()
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    data = {"train": (x[:20], y[:20]), "valid": (x[20:], y[20:]), "batch_size": 8, "valid_batch_size": 8}
    problem = pt.Problem(model, model.architecture, **data, loss=cross_entropy)
    outer = torch.optim.Adam(model.architecture.parameters(), lr=0.01)
    return pt.Tuner(problem, inner=pt.SGD(0.05), inner_steps=1, outer=outer, objective=pt.ValidationRisk()), outer


def counting(calls: list[str], name: str, function: Any) -> Any:
    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return function(*arguments, **named)

    return counted


def test_checks_and_probes_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, _ = make()
    earlier.fit(1)  # values of an earlier fit are known now, so tensors are compared with them
    calls: list[str] = []
    for owner, name in (
        (outer_run, "check_entries"),
        (outer_run, "try_forwards"),
        (outer_run, "check_shards"),
        (Problem, "try_losses"),
    ):
        monkeypatch.setattr(owner, name, counting(calls, name, getattr(owner, name)))
    digested: list[int] = []
    digest = seen_data._digest
    monkeypatch.setattr(seen_data, "_digest", lambda tensor: digested.append(tensor.numel()) or digest(tensor))
    tuner, outer = make()
    tuner.hypergradient()
    assert len(digested) > 1, "the first call reads θ too"
    digested.clear()
    for _ in range(4):
        outer.step()
        tuner.hypergradient()
    assert sorted(calls) == ["check_entries", "check_shards", "try_forwards", "try_losses"]
    assert set(digested) <= {2}, "only λ is read again"


def test_a_tensor_that_lost_its_record_is_recorded_again() -> None:
    tuner, _ = make()
    tuner.hypergradient()
    model = tuner.problem.model
    seen = seen_data.SEEN_DATA.samples_of(model.parameters())
    del seen_data.SEEN_DATA._by_tensor[next(model.parameters())]
    tuner.hypergradient()
    assert set(map(id, seen)) <= set(map(id, seen_data.SEEN_DATA.samples_of([next(model.parameters())])))
