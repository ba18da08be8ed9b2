"""Short work runs in one thread of the CPU, long work in as many as torch has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import _get_current_dispatch_mode

import pactune as pt
from pactune.rounds.forwards import try_forwards
from pactune.threads import SHORT, one_thread

THREADS = 2


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


class Counted(nn.Module):
    """Notes the number of threads and of rows of each forward."""

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((len(x), torch.get_num_threads()))
        return self.linear(x)  # type: ignore[no-any-return]


def data(inputs: int, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, inputs, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def tuner(
    model: nn.Module, inputs: int = 8, loss: Callable[..., Tensor] = cross_entropy, valid_rows: int = 30
) -> pt.Tuner:
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=data(inputs, 20), valid=data(inputs, valid_rows), loss=loss)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.SGD(0.01), inner_steps=2, outer=outer, objective=pt.PACBayes(0.1), engine="eager")


@pytest.mark.parametrize(("inputs", "outputs", "expected"), [(8, 3, 1), (4000, 100, THREADS)])
def test_the_steps_of_a_small_model_use_one_thread(inputs: int, outputs: int, expected: int) -> None:
    model = Counted(inputs, outputs)
    made = tuner(model, inputs)
    made.fit(outer_steps=1, progress=False)
    probes = len(model.seen)
    made.fit(outer_steps=2, progress=False)
    assert {count for _, count in model.seen[probes:]} == {expected}
    assert torch.get_num_threads() == THREADS


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"), [(8, 3, 1), pytest.param(4000, 100, THREADS, id="many parameters, few rows")]
)
def test_the_hypergradient_of_a_small_model_uses_one_thread(inputs: int, outputs: int, expected: int) -> None:
    model = Counted(inputs, outputs)
    made = tuner(model, inputs, valid_rows=1)
    assert try_forwards(made.problem).operations < SHORT
    made.hypergradient()
    probes = len(model.seen)
    made.hypergradient()
    assert {count for _, count in model.seen[probes:]} == {expected}
    assert torch.get_num_threads() == THREADS


def test_many_test_rows_use_all_threads() -> None:
    model = Counted()
    rows = 1_000_000
    tuner(model).fit(outer_steps=1, test=data(8, rows), progress=False)
    assert {count for own, count in model.seen if own == rows} == {THREADS}


def test_an_error_restores_the_threads() -> None:
    def loss(prediction: Tensor, y: Tensor) -> Tensor:
        if torch.get_num_threads() == 1:
            raise ZeroDivisionError
        return cross_entropy(prediction, y)

    with pytest.raises(ZeroDivisionError):
        tuner(Counted(), loss=loss).fit(outer_steps=1, progress=False)
    assert torch.get_num_threads() == THREADS


def test_it_sets_nothing_where_it_is_not_needed() -> None:
    with one_thread(False):
        assert torch.get_num_threads() == THREADS


def test_operations_are_those_of_the_products() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(4 * 64, 3))
    x, y = data(64, 50)
    problem = pt.Problem(
        model,
        pt.WeightDecay(model),
        train=(x[:20].reshape(-1, 1, 8, 8), y[:20]),
        valid=(x[20:].reshape(-1, 1, 8, 8), y[20:]),
        loss=cross_entropy,
    )
    found = try_forwards(problem)
    assert found.operations == 2 * 50 * (9 * 4 * 64 + 4 * 64 * 3)
    assert found.work_on([problem.train]) == pytest.approx(found.operations * 20 / 50)


def test_a_recurrent_model_does_not_count_as_none() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.linear = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.lstm(x.reshape(-1, 2, 4))[0][:, -1])  # type: ignore[no-any-return]

    model = Last()
    assert try_forwards(tuner(model).problem).operations >= 2 * 50 * sum(p.numel() for p in model.lstm.parameters())


def test_a_loss_that_cannot_be_counted_is_long_work() -> None:
    def loss(prediction: Tensor, y: Tensor) -> Tensor:
        if _get_current_dispatch_mode() is not None:
            raise NotImplementedError
        return cross_entropy(prediction, y)

    model = Counted()
    made = tuner(model, loss=loss)
    assert try_forwards(made.problem).operations == float("inf")
    made.fit(outer_steps=1, progress=False)
    assert {count for _, count in model.seen} == {THREADS}
