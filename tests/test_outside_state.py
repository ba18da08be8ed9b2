"""Losses and models that read something which changes: every engine gives what the eager one gives."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import pactune as pt
from pactune.engines import Traced

pytestmark = pytest.mark.slow

SCALE = 1.0


class Trainer:
    """A loss with a temperature, in all the ways in which Python can hold one."""

    everyone = 1.0

    def __init__(self) -> None:
        self.tau, self.inner = 1.0, types.SimpleNamespace(tau=1.0)
        self.array, self.tensor, self.table = np.ones(1), torch.ones((), dtype=torch.float64), {"tau": [1.0]}
        self.calls = 0

    def loss(self, model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        return mse_loss(model(batch[0]) / self.tau, batch[1])

    def __call__(self, model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        return self.loss(model, batch, hyper)

    def anneal(self) -> None:
        global SCALE
        self.tau *= 0.97
        self.inner.tau *= 0.97
        self.array[0] *= 0.97
        self.tensor *= 0.97
        self.table["tau"][0] *= 0.97
        Trainer.everyone *= 0.97
        SCALE *= 0.97


def scaled(model: nn.Module, batch: Any, hyper: nn.Module, *, by: Callable[[], Any]) -> Tensor:
    return mse_loss(model(batch[0]) / by(), batch[1])


def with_config(model: nn.Module, batch: Any, hyper: nn.Module, config: Any) -> Tensor:
    return mse_loss(model(batch[0]) / config.tau, batch[1])


def counted(trainer: Trainer) -> Callable[..., Tensor]:
    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        trainer.calls += 1
        return mse_loss(model(batch[0]) / (1.0 if trainer.calls < 40 else 2.0), batch[1])

    return loss


LOSSES: dict[str, Callable[[Trainer], Callable[..., Tensor]]] = {
    "bound method": lambda t: t.loss,
    "callable object": lambda t: t,
    "partial over an object": lambda t: functools.partial(with_config, config=t),
    "closure over a namespace": lambda t: lambda m, b, h: with_config(m, b, h, t.inner),
    "array that is written into": lambda t: functools.partial(scaled, by=lambda: float(t.array[0])),
    "tensor that is written into": lambda t: functools.partial(scaled, by=lambda: float(t.tensor)),
    "list in a table": lambda t: functools.partial(scaled, by=lambda: t.table["tau"][0]),
    "attribute of a class": lambda t: functools.partial(scaled, by=lambda: Trainer.everyone),
    "global variable": lambda t: functools.partial(scaled, by=lambda: SCALE),
    "count of its own calls": counted,
}


def history(kind: str, engine: str | Traced, *, chains: int = 1, batch_size: int | None = None, **settings: Any) -> Any:
    global SCALE
    SCALE = Trainer.everyone = 1.0
    torch.manual_seed(0)
    trainer, model = Trainer(), nn.Linear(3, 2).double()
    hyper, (x, y) = pt.WeightDecay(model), torch.randn(2, 20, 3, dtype=torch.float64)
    problem = pt.Problem(
        model,
        hyper,
        train=(x[:10], y[:10, :2]),
        valid=(x[10:], y[10:, :2]),
        train_loss=LOSSES[kind](trainer),
        valid_loss=lambda m, b, h: mse_loss(m(b[0]), b[1]),
        batch_size=batch_size,
    )

    class Anneal(pt.Callback):
        def on_hyper_step(self, tuner: pt.Tuner) -> None:
            trainer.anneal()

    tuner = pt.Tuner(
        problem,
        inner=pt.SGD(0.05),
        inner_steps=9 if batch_size is None else 8,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        engine=engine,
        chains=chains,
        restart=chains > 1,
        **{"objective": pt.PACBayes(0.01), **settings},
    )
    return tuner.fit(7, callbacks=[Anneal()], progress=False, plain_steps=0).history.drop(columns="seconds")


@pytest.mark.parametrize("kind", LOSSES)
def test_a_change_is_noticed_before_a_recording_is_used(kind: str) -> None:
    eager, traced = history(kind, "eager", chains=1), history(kind, Traced(steps=2), chains=1)
    assert eager.equals(traced)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_change_is_noticed_where_rounds_begin_with_batches_of_other_sizes(kind: str) -> None:
    eager, traced = (history(kind, engine, chains=1, batch_size=4) for engine in ("eager", Traced(steps=2)))
    assert eager.equals(traced)  # 10 rows give batches of 4, 4 and 2


@pytest.mark.filterwarnings("ignore::UserWarning")  # these rounds are too short to converge
@pytest.mark.parametrize("kind", LOSSES)
def test_a_change_is_noticed_where_a_linear_solve_is_recorded(kind: str) -> None:
    settings = {"objective": pt.ValidationRisk(), "hypergradient": pt.Implicit(pt.Neumann(3))}
    eager, traced = (history(kind, engine, **settings) for engine in ("eager", Traced()))
    assert eager.equals(traced)  # rounds 3, 5, 6 and 7 look for no jumps, so they may be recorded


@pytest.mark.parametrize("kind", LOSSES)
def test_a_change_is_noticed_where_chains_are_stacked(kind: str) -> None:
    eager, stacked = history(kind, "eager", chains=2), history(kind, Traced(steps=2), chains=2)
    np.testing.assert_allclose(stacked.values, eager.values, rtol=1e-9, atol=1e-12)


def test_a_change_in_one_cell_of_a_grid_is_noticed() -> None:
    def run(engine: str) -> Any:
        torch.manual_seed(0)
        x, y = torch.randn(2, 20, 3, dtype=torch.float64)
        arrays = {seed: np.ones(1) for seed in range(3)}

        def build(seed: int) -> pt.Tuner:
            model = nn.Linear(3, 2).double()
            with torch.no_grad():
                model.weight.fill_(0.1 * (seed + 1))
                model.bias.zero_()
            hyper = pt.WeightDecay(model)
            loss = functools.partial(scaled, by=functools.partial(read, arrays[seed]))
            problem = pt.Problem(
                model,
                hyper,
                train=(x[:10], y[:10, :2]),
                valid=(x[10:], y[10:, :2]),
                train_loss=loss,
                valid_loss=lambda m, b, h: mse_loss(m(b[0]), b[1]),
            )
            outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
            return pt.Tuner(problem, inner=pt.SGD(0.05), inner_steps=6, outer=outer, objective=pt.PACBayes(0.01))

        class Anneal(pt.Callback):
            def on_hyper_step(self, tuner: pt.Tuner) -> None:
                arrays[1][0] *= 0.9

        return pt.fit_grid(
            build, {"seed": [0, 1, 2]}, outer_steps=3, callbacks=[Anneal()], progress=False, engine=engine
        ).history

    eager, stacked = (run(engine).drop(columns="seconds") for engine in ("eager", "traced"))
    np.testing.assert_allclose(stacked.values, eager.values, rtol=1e-9, atol=1e-12)


def read(array: Any) -> float:
    return float(array[0])
