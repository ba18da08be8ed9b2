"""Any optimizer of `torch.optim` as an inner dynamics, for estimators that go back at most one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.checks import check_flag, shown
from pactune.dynamics.base import Dynamics, Schedule, Slots, StepInputs, coupled, decay
from pactune.dynamics.sgd import SGD
from pactune.errors import SettingError
from pactune.trees import Params

__all__ = ["TorchOptim"]

Factory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class TorchOptim(Dynamics):
    """The step of `factory(params)`, with the optimizer's state kept in slots.

    The step is not differentiable. T1–T2 (K = 1) differentiates the gradient step of the same learning rate in its
    place, as Luketina et al. do. Larger K raises an error.

    Args:
        factory: for instance `functools.partial(torch.optim.RMSprop, lr=1e-3)`.
        decoupled: apply the penalty after the step instead of adding it to the gradient.
    """

    factory: Factory
    decoupled: bool = False

    differentiable = False

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise SettingError(
                f"`factory` must make a torch.optim optimizer from parameters, got {shown(self.factory)}"
            )
        check_flag("decoupled", self.decoupled)

    @property
    def lr(self) -> Schedule:  # type: ignore[override]
        """The learning rate the factory sets."""
        return float(self._optimizer([torch.zeros(1, requires_grad=True, device="cpu")]).param_groups[0]["lr"])

    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1} and the optimizer's state, as tensors by slot and parameter name."""
        gradient = inputs.gradient if self.decoupled else coupled(params, inputs)
        owned = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
        optimizer = self._optimizer(list(owned.values()))
        for name, leaf in owned.items():
            leaf.grad = gradient[name].detach()
            state = {slot: values[name].clone() for slot, values in slots.items() if name in values}
            if state:
                optimizer.state[leaf] = state
        optimizer.step()
        moved = {name: leaf.detach() for name, leaf in owned.items()}
        eta = optimizer.param_groups[0]["lr"]
        return (decay(moved, inputs, eta) if self.decoupled else moved), _state_slots(optimizer, owned)

    def pull_back_form(self) -> Dynamics:
        """Return the plain gradient step of the same learning rate."""
        return SGD(self.lr, decoupled=self.decoupled)

    def _optimizer(self, leaves: list[Tensor]) -> torch.optim.Optimizer:
        try:
            optimizer = self.factory(leaves)
        except (TypeError, ValueError) as error:
            raise SettingError(f"`inner` fails to make a torch.optim optimizer: {error}") from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SettingError(f"`inner` must make a torch.optim.Optimizer, it made a {type(optimizer).__name__}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise SettingError("`inner` cannot be LBFGS: its step evaluates the loss itself; use SGD or Adam")
        return optimizer


def _state_slots(optimizer: torch.optim.Optimizer, owned: Params) -> Slots:
    slots: Slots = {}
    for name, leaf in owned.items():
        for slot, value in optimizer.state[leaf].items():
            if value is None:
                continue
            if not isinstance(value, Tensor):
                kind = type(optimizer).__name__
                raise SettingError(
                    f"`inner`: {kind} keeps `{slot}` as {type(value).__name__}; only tensors are carried"
                )
            slots.setdefault(slot, {})[name] = value.detach()
    return slots
