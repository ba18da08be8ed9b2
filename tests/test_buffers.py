"""BatchNorm: statistics move with training forwards only, and the user's own model is the trained one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.trees import clone


def normed(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


class Assigning(nn.Module):
    """Assigns its buffer anew instead of writing into it, as some modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            self.calls = self.calls + 1
        return out - self.mean


def plain_loop(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


ESTIMATORS = [pt.Truncated(0), pt.Truncated(2), pt.Windowed(3), pt.ForwardMode()]


@pytest.mark.parametrize("path", ESTIMATORS, ids=str)
@pytest.mark.parametrize("build", [normed, Assigning])
def test_statistics_are_those_of_a_plain_training_loop(build: Any, path: Any, make: Any, classes: Any) -> None:
    torch.manual_seed(0)
    model = build()
    twin = build()
    twin.load_state_dict(model.state_dict())
    hyper = pt.WeightDecay(model, per="global", init=0.0)
    tuner = make(
        model, hyper, path_hypergradient=path, hypergradient=pt.Truncated(2), outer_lr=0.0, objective=pt.PACBayes(0.5)
    )
    tuner.fit(3, progress=False)
    plain_loop(twin, *classes(12, 1), steps=12)
    assert model.state_dict().keys() == twin.state_dict().keys()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
        assert model.state_dict()[name].dtype == value.dtype


def test_number_of_batches_counts_training_forwards(make: Any) -> None:
    model = normed()
    tuner = make(model, restart=False)
    for _ in range(3):
        tuner.hypergradient()
    assert int(model[1].num_batches_tracked) == 3 * tuner.inner_steps


def test_restart_begins_with_fresh_statistics(make: Any) -> None:
    model = normed()
    make(model, restart=True).fit(3, progress=False)
    assert int(model[1].num_batches_tracked) == 4


def test_model_works_in_eval_and_reports_what_it_predicts(make: Any, classes: Any) -> None:
    model = normed()
    x, y = classes(10, 2)
    result = make(model).fit(3, test=classes(30, 3), progress=False)
    model.eval()
    with torch.no_grad():
        assert float(F.cross_entropy(model(x), y)) == pytest.approx(result.rows[-1]["valid_risk"], rel=1e-6)
        one = model(x[:1])
        torch.testing.assert_close(one, model(x)[:1])  # no batch statistics are used
    assert result.model is model


@pytest.mark.parametrize("training", [True, False])
def test_mode_flags_are_kept(training: bool, make: Any) -> None:
    model = normed()
    model.train(training)
    model[1].train(not training)
    before = [module.training for module in model.modules()]
    tuner = make(model)
    tuner.hypergradient()
    assert [module.training for module in model.modules()] == before
    pt.check_hypergradient(tuner, directions=1)
    assert [module.training for module in model.modules()] == before
    tuner.fit(2, progress=False)
    assert not any(module.training for module in model.modules())
    tuner.hypergradient()
    assert not any(module.training for module in model.modules())


def test_frozen_normalisation_stays_frozen(make: Any) -> None:
    model = normed()
    model[1].eval()
    make(model).fit(2, progress=False)
    assert int(model[1].num_batches_tracked) == 0
    assert torch.equal(model[1].running_mean, torch.zeros(5))


def test_a_model_handed_over_in_eval_is_trained_in_training_mode(make: Any) -> None:
    models = normed(), normed()
    models[1].eval()
    rows = [make(model).fit(2, progress=False).history.drop(columns="seconds") for model in models]
    assert rows[0].equals(rows[1])


@pytest.mark.parametrize("path", [pt.Truncated(0), pt.Truncated(3), pt.Windowed(2)], ids=str)
def test_hypergradient_through_batch_statistics(path: Any, make: Any, classes: Any) -> None:
    """A train and a validation forward in one graph share no buffer, so the derivatives stay right."""
    tuner = make(normed(), hypergradient=path, path_hypergradient=path, batch_size=6, objective=pt.PACBayes(0.5))
    assert pt.check_hypergradient(tuner, directions=2).error < 1e-5


@pytest.mark.parametrize("build", [normed, Assigning])
def test_measuring_leaves_the_state_alone(build: Any, make: Any) -> None:
    """A step may be replayed, so neither forward may write into the buffers that it started from."""
    tuner = make(build())
    plan, lane = tuner.outer_run.plan(0.5), tuner.outer_run.chains.parts[0]
    (state,) = lane.starts(tuner.problem.hyperparameters())[0]
    before = clone(state.buffers)
    (data,) = tuner.outer_run.inputs.step_data(0, 1)
    seen = plan.trajectory.observe(state, tuner.problem.hyperparameters(), data, by_hyper=True, by_params=True)
    assert all(torch.equal(value, before[name]) for name, value in state.buffers.items())
    assert not all(torch.equal(value, before[name]) for name, value in seen.buffers.items())


class Normed(nn.Module):
    """Adds the mean of a buffer, which it writes into, or assigns anew, in training mode."""

    def __init__(self, mean: torch.Tensor, *, assigns: bool = False) -> None:
        super().__init__()
        self.linear, self.assigns = nn.Linear(4, 4), assigns
        self.register_buffer("mean", mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        if self.training:
            moved = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            self.mean = moved if self.assigns else self.mean.copy_(moved)
        return out - self.mean


def test_a_buffer_of_two_modules_stays_one_tensor(make: Any, classes: Any) -> None:
    torch.manual_seed(0)
    mean = torch.zeros(4)
    model = nn.Sequential(Normed(mean), nn.Tanh(), Normed(mean), nn.Linear(4, 3))
    twin = copy.deepcopy(model)
    make(model, pt.WeightDecay(model, init=0.0), outer_lr=0.0).fit(3, progress=False)
    plain_loop(twin, *classes(12, 1), steps=12)
    assert model[0].mean is model[2].mean
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_a_buffer_of_two_modules_may_not_be_assigned_in_one(make: Any) -> None:
    mean = torch.zeros(4)
    model = nn.Sequential(Normed(mean), Normed(mean, assigns=True), nn.Linear(4, 3))
    with pytest.raises(pt.SettingError, match=r"buffers 0\.mean, 1\.mean.*`copy_`"):
        make(model).fit(1, progress=False)
