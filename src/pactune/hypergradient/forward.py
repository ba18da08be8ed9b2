"""Forward mode: compute dθ_t/dλ along the trajectory; exact, for few hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pactune.checks import check_count
from pactune.dynamics.base import Dynamics, Slots
from pactune.errors import SettingError
from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator
from pactune.hypergradient.records import Adjoint, InnerState, Observation, StepRecord, ValueAndGradient
from pactune.hypergradient.trajectory import Trajectory
from pactune.nested import map_tensors, tensors_in
from pactune.problem.data import Batch
from pactune.problem.model_inputs import split_target
from pactune.trees import Params, add, dot, zeros_like

__all__ = ["ForwardMode"]


@dataclass(frozen=True)
class ForwardMode(Estimator):
    """The exact gradient with memory O(mn), independent of T, and n Jacobian–vector products per step.

    Choose it when there are a few hyperparameters and many inner steps: learning rates per tensor, loss weights.

    Args:
        limit: the largest number of hyperparameters. Each one costs a product per step.
    """

    limit: int = 1000

    online = True

    def __post_init__(self) -> None:
        check_count("limit", self.limit)

    def reach(self, inner_steps: int) -> int:
        """Return T: nothing is truncated."""
        return inner_steps

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return 0: nothing is held fixed."""
        return 0

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise if there are too many hyperparameters, or if the dynamics cannot be differentiated."""
        if count > self.limit:
            raise SettingError(
                f"`{role}`: ForwardMode carries one tangent per hyperparameter and is limited to {self.limit}, "
                f"got {count}; use Truncated or Windowed, or raise `limit`"
            )
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _ForwardChainEstimator(trajectory, context)


class _ForwardChainEstimator(ChainEstimator):
    by_params = True

    def __init__(self, trajectory: Trajectory, context: ChainContext) -> None:
        self._trajectory, self._context = trajectory, context
        self._directions = list(_basis(context.hyper))
        self._tangents: list[Adjoint | None] = [self._initial(direction) for direction in self._directions]
        self._sum = zeros_like(context.hyper)

    def observe(self, record: StepRecord, observation: Observation) -> Params:
        assert observation.by_hyper is not None
        assert observation.by_params is not None
        found = add(observation.by_hyper, self._project(observation.by_params))
        self._sum = add(self._sum, found)
        return found

    def add_step(self, record: StepRecord) -> None:
        pairs = zip(self._directions, self._tangents, strict=True)
        self._tangents = [self._push(record, direction, tangent) for direction, tangent in pairs]

    def path_gradient(self) -> Params:
        return self._sum

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        return add(final.by_hyper, self._project(final.by_params))

    def _project(self, by_params: Params) -> Params:
        """Return ⟨∂/∂θ, dθ_t/dλ_i⟩ for every i, in the shapes of λ."""
        zero = next(iter(by_params.values())).new_zeros(())
        flat = torch.stack([zero if t is None else dot(by_params, t.params) for t in self._tangents])
        parts = torch.split(flat, [value.numel() for value in self._context.hyper.values()])
        return {
            name: part.view_as(value) for (name, value), part in zip(self._context.hyper.items(), parts, strict=True)
        }

    def _initial(self, direction: Params) -> Adjoint | None:
        """Return dθ_0/dλ_i; None stands for zero."""
        if self._context.drawn is None or not self._trajectory.problem.has_initial:
            return None
        with forward_ad.dual_level():
            start = self._trajectory.problem.initial(self._context.drawn, _dual(self._context.hyper, direction))
            return Adjoint(_tangents(start), {})

    def _push(self, record: StepRecord, direction: Params, tangent: Adjoint | None) -> Adjoint:
        """Return dθ_{t+1}/dλ_i from dθ_t/dλ_i."""
        state = record.state
        with forward_ad.dual_level(), torch.enable_grad():
            params = _dual(state.params, tangent.params if tangent else zeros_like(state.params))
            slots: Slots = {s: _dual(v, tangent.slots.get(s) if tangent else None) for s, v in state.slots.items()}
            start = InnerState(params, slots, state.buffers, state.step)
            data = record.data._replace(train=_with_dual_targets(record.data.train))
            after = self._trajectory.replay(start, _dual(record.hyper, direction), data)
            return Adjoint(_tangents(after.params), {slot: _tangents(values) for slot, values in after.slots.items()})


def _basis(hyper: Params) -> list[Params]:
    """Return the unit vectors of λ."""
    vectors = []
    for name, value in hyper.items():
        for i in range(value.numel()):
            flat = value.new_zeros(value.numel())
            flat[i] = 1.0
            vectors.append({**zeros_like(hyper), name: flat.view_as(value)})
    return vectors


def _dual(values: Params, tangents: Params | None) -> Params:
    fresh = {name: value.detach().requires_grad_() for name, value in values.items()}
    if tangents is None:
        return fresh
    return {name: forward_ad.make_dual(value, tangents[name]) for name, value in fresh.items()}  # type: ignore[no-untyped-call]


def _with_dual_targets(batch: Batch) -> Batch:
    """Give the targets a tangent of zeros. Without a tangent, `F.mse_loss` has no second derivative in forward mode.

    A loss may take any part of a batch as its target. If the first input of the model is known, it gets no tangent: a
    model may take the root of an input that is 0, and there the product of the tangent and the derivative is NaN.
    """
    parts = split_target(batch.data)
    others = batch.data if parts is None else (parts.arguments[1:], parts.target)
    chosen = {id(tensor) for tensor in tensors_in(others) if tensor.is_floating_point()}

    def with_zeros(tensor: Tensor) -> Tensor:
        if id(tensor) not in chosen:
            return tensor
        return forward_ad.make_dual(tensor.detach(), torch.zeros_like(tensor))  # type: ignore[no-untyped-call,no-any-return]

    return batch._replace(data=map_tensors(batch.data, with_zeros))


def _tangents(values: Params) -> Params:
    def tangent(value: Tensor) -> Tensor:
        found = forward_ad.unpack_dual(value).tangent  # type: ignore[no-untyped-call]
        return torch.zeros_like(value).detach() if found is None else found.detach()

    return {name: tangent(value) for name, value in values.items()}
