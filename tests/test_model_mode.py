"""`fit` returns its models in `eval()` mode, and training does not depend on the mode in which it finds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.errors import SettingError
from pactune.problem.modules import copied, frozen_parts
from pactune.results.callbacks import Callback


def network(*, frozen: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3))
    if frozen:
        model[1].eval()
    return model


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def tuner_of(model: nn.Module, zeta: Any = 1e-3, **data: Any) -> pt.Tuner:
    hyper = pt.WeightDecay(model)
    given = data or {"train": rows(12, 1), "valid": rows(10, 2)}
    problem = pt.Problem(model, hyper, loss=cross_entropy, **given)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=3, outer=outer, objective=pt.PACBayes(zeta))


def training_flags(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


class Flags(Callback):
    """Notes the mode of the model during the run and at its end."""

    def __init__(self) -> None:
        self.during: list[list[bool]] = []
        self.end: list[bool] = []

    def on_outer_step(self, tuner: Any, row: Any) -> None:
        self.during.append(training_flags(tuner.problem.model))

    def on_fit_end(self, tuner: Any, result: Any) -> None:
        self.end = training_flags(result.model)


def test_the_model_is_in_eval_after_fit_and_at_its_end() -> None:
    flags = Flags()
    result = tuner_of(network()).fit(2, callbacks=[flags], progress=False)
    assert not any(training_flags(result.model))
    assert not any(flags.end)
    assert all(map(all, flags.during))
    assert len(flags.during) == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_a_second_fit_trains_as_if_it_had_been_one(frozen: bool) -> None:
    whole, halves = (tuner_of(network(frozen=frozen)) for _ in range(2))
    once = whole.fit(4, progress=False)
    halves.fit(2, progress=False)
    twice = halves.fit(2, progress=False)
    assert (
        once.history.drop(columns="seconds")
        .iloc[2:]
        .reset_index(drop=True)
        .equals(twice.history.drop(columns="seconds"))
    )
    counted = int(twice.model[1].num_batches_tracked)  # type: ignore[index, arg-type]
    assert (counted > 0) != frozen


def test_another_tuner_and_a_copy_find_the_frozen_parts_again() -> None:
    model = network(frozen=True)
    tuner_of(model).fit(1, progress=False)
    tuner_of(model).fit(1, progress=False)
    assert int(model[1].num_batches_tracked) == 0  # type: ignore[arg-type]
    assert frozen_parts(model) == {model[1]}
    (twin,) = copied(model)
    assert frozen_parts(twin) == {twin[1]}


class NormsAtRest(nn.Sequential):
    """Keeps its normalisation in `eval()` mode, and notes its mode, as some detectors do."""

    noisy = True

    def train(self, mode: bool = True) -> NormsAtRest:
        super().train(mode)
        self[1].eval()
        self.noisy = mode
        return self


class Merging(nn.Linear):
    """Adds a trained matrix to its weight in `eval()` mode, as adapters do that merge."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.weight.requires_grad_(False)
        self.added, self.merged = nn.Parameter(torch.zeros(3, 4)), False

    def train(self, mode: bool = True) -> Merging:
        if mode == self.merged:
            self.weight.data += -self.added if mode else self.added
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (0 if self.merged else x @ self.added.T)


@pytest.mark.parametrize("parts", [(3,), (1, 2)])
def test_a_train_method_of_the_models_own_is_called(parts: tuple[int, ...]) -> None:
    model = NormsAtRest(*network())
    tuner = tuner_of(model)
    for outer_steps in parts:
        tuner.fit(outer_steps, progress=False)
    assert int(model[1].num_batches_tracked) == 0  # type: ignore[arg-type]
    assert not model.noisy
    with tuner.problem.training_mode():
        assert model.noisy
        tuner.problem.evaluate(tuner.problem.valid)
        assert model.noisy


def test_a_model_that_merges_weights_in_eval_mode_is_refused() -> None:
    with pytest.raises(SettingError, match="switch merging off"):
        tuner_of(Merging()).fit(1, progress=False)


def test_a_users_own_train_call_wins() -> None:
    model = network(frozen=True)
    tuner = tuner_of(model)
    tuner.fit(1, progress=False)
    model.train()
    tuner.fit(1, progress=False)
    assert int(model[1].num_batches_tracked) > 0  # type: ignore[arg-type]


def test_a_frozen_part_is_no_change_for_a_resumed_run(tmp_path: Any) -> None:
    tuner = tuner_of(network(frozen=True))
    tuner.fit(1, run_dir=tmp_path / "run", progress=False)
    assert len(tuner.fit(2, run_dir=tmp_path / "run", resume=True, progress=False).rows) == 2
    again = tuner_of(network(frozen=True)).fit(3, run_dir=tmp_path / "run", resume=True, progress=False)
    assert len(again.rows) == 3


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_folds_and_held_out_runs_end_in_eval(engine: str) -> None:
    model = nn.Linear(4, 3)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, data=rows(21, 1), folds=3, loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(
        problem, inner=pt.SGD(lr=0.1), inner_steps=2, outer=outer, objective=pt.PACBayes(0.1), engine=engine
    )
    result = tuner.fit(2, keep="held-out", progress=False)
    assert not any(flag for one in (result.model, *result.fold_models) for flag in training_flags(one))
    assert len(result.fold_models) == 3


class Stop(Callback):
    """Presses Ctrl-C in the first outer step."""

    def on_outer_step(self, tuner: Any, row: Any) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_run_ends_in_eval() -> None:
    result = tuner_of(network()).fit(3, callbacks=[Stop()], progress=False)
    assert result.status == "interrupted"
    assert not any(training_flags(result.model))


def test_a_grid_ends_in_eval() -> None:
    grid = pt.fit_grid(
        lambda zeta: tuner_of(nn.Linear(4, 3), zeta), {"zeta": [0.0, 0.1]}, outer_steps=2, progress=False
    )
    assert not any(flag for result in grid.results for flag in training_flags(result.model))


def test_a_diverged_run_ends_in_eval() -> None:
    model = nn.Linear(4, 3)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=rows(12, 1), valid=rows(10, 2), loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=1e30)
    tuner = pt.Tuner(problem, inner=pt.SGD(lr=1e3), inner_steps=3, outer=outer, objective=pt.ValidationRisk())
    result = tuner.fit(50, on_divergence="return", progress=False)
    assert result.status == "diverged"
    assert not any(training_flags(result.model))
