"""Who owns a tensor: a round never writes into the state it starts at, a gradient in `.grad` is a copy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import pactune as pt
from pactune.hypergradient.trajectory import Trajectory
from pactune.rounds.chain import Chain

Make = Callable[..., pt.Tuner]


@pytest.mark.parametrize(("steps", "donated"), [(0, [False, True]), (2, [True, True])])
def test_a_chain_gives_its_memory_away_once_it_is_its_own(
    make: Make, monkeypatch: pytest.MonkeyPatch, steps: int, donated: list[bool]
) -> None:
    """After no step the state is still that of the last round, which is kept."""
    tuner = make(inner=pt.Adam(lr=0.1), inner_steps=6)
    (request,) = tuner.outer_run.chains.requests(tuner.outer_run.plan(0.05), tuner.problem.hyperparameters())
    chain = Chain(request.plan, request.states[0], request.hyper, None)
    seen: list[bool] = []
    advance = Trajectory.advance

    def watch(self: Trajectory, *arguments: object, donated: bool = False) -> object:
        seen.append(donated)
        return advance(self, *arguments, donated=donated)  # type: ignore[arg-type]

    monkeypatch.setattr(Trajectory, "advance", watch)
    chain.continue_from(chain.carry, steps)
    for t in (steps, steps + 1):
        chain.step(request.step_data_at(t)[0], request.hyper)
    assert seen == donated


def test_the_state_at_the_start_of_a_round_survives_it(make: Make) -> None:
    tuner = make(inner=pt.Adam(lr=0.1), inner_steps=6)
    (request,) = tuner.outer_run.chains.requests(tuner.outer_run.plan(0.05), tuner.problem.hyperparameters())
    before = {name: value.clone() for name, value in request.states[0].params.items()}
    chain = Chain(request.plan, request.states[0], request.hyper, None)
    chain.continue_from(chain.carry, 0)
    for t in range(3):
        chain.step(request.step_data_at(t)[0], request.hyper)
    assert all(torch.equal(request.states[0].params[name], value) for name, value in before.items())


def test_a_gradient_that_the_user_clips_in_place_stays_whole_elsewhere(make: Make) -> None:
    tuner = make()
    gradient = {name: torch.ones_like(p) for name, p in tuner.problem.hyper_leaves().items()}
    tuner.outer_run.fill_gradients(gradient)
    for parameter in tuner.problem.hyper_leaves().values():
        assert parameter.grad is not None
        assert not parameter.grad.requires_grad
        parameter.grad.mul_(0.5)
    assert all(torch.equal(value, torch.ones_like(value)) for value in gradient.values())


class Scale(nn.Module):
    """A module without `reset_parameters`, so that θ_0 cannot be drawn anew."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :3] * self.factor


def test_a_start_that_is_taken_from_the_model_is_a_copy(make: Make) -> None:
    model = Scale()
    tuner = make(
        model,
        pt.Initialization(model),
        restart=True,
        hypergradient=pt.Windowed(4),
        path_hypergradient=pt.Windowed(4),
    )
    drawn = tuner.outer_run.inputs.draw(0, 0)
    with torch.no_grad():
        model.factor.mul_(2.0)
    assert torch.equal(drawn["factor"], torch.ones(3))
