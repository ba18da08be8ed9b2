"""The online algorithm (Algorithm C.2): λ moves inside a round, by the outer optimizer or by its rule as a function.

The chains of a round call the optimizer. An engine that records steps cannot do so: it takes the optimizer's rule as a
pure function of λ and the optimizer's tensors, which are part of the carry. Other optimizers are not recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune.trees import Params, detach, scale, zeros_like

__all__ = [
    "OnlineRule",
    "OnlineState",
    "OnlineStep",
    "OptimizerStep",
    "half_inverse_root",
    "has_hooks",
    "root_gradients",
    "rule_of",
]

UNKNOWN = ("weight_decay", "maximize", "differentiable", "centered", "nesterov", "dampening")  # options of no rule here


class OnlineState(NamedTuple):
    """λ and the tensors of its optimizer, while an engine runs the steps.

    Attributes:
        hyper: λ.
        slots: the optimizer's tensors, by their name in its state and by the name of the hyperparameter.
        zeta: ζ, a number or one for each stacked run.
    """

    hyper: Params
    slots: dict[str, Params]
    zeta: Tensor


@dataclass(frozen=True)
class OnlineRule(ABC):
    """The step of an outer optimizer as a pure function. Rules are equal if they compute the same function.

    Attributes:
        names: the hyperparameters that the optimizer moves.
        lr: its step size.
    """

    names: tuple[str, ...]
    lr: float

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """The names of the optimizer's tensors."""

    @abstractmethod
    def move(self, value: Tensor, gradient: Tensor, slots: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return one hyperparameter and its slots after a step."""

    def step(self, state: OnlineState, gradient: Params) -> OnlineState:
        """Return the state after a step along ζ times a gradient."""
        scaled, hyper = scale(state.zeta, gradient), dict(state.hyper)
        slots = {slot: dict(values) for slot, values in state.slots.items()}
        for name in self.names:
            own = {slot: values[name] for slot, values in slots.items()}
            hyper[name], after = self.move(hyper[name], scaled[name], own)
            for slot, value in after.items():
                slots[slot][name] = value
        return OnlineState(hyper, slots, state.zeta)


@dataclass(frozen=True)
class RMSpropRule(OnlineRule):
    """s ← αs + (1 − α)g², λ ← λ − ηg/(√s + ε)."""

    alpha: float
    eps: float

    slots = ("square_avg",)

    def move(self, value: Tensor, gradient: Tensor, slots: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return λ and s after a step, by the operations of `torch.optim.RMSprop`."""
        square = slots["square_avg"].mul(self.alpha).addcmul(gradient, gradient, value=1 - self.alpha)
        return value.addcdiv(gradient, square.sqrt().add(self.eps), value=-self.lr), {"square_avg": square}


@dataclass(frozen=True)
class SGDRule(OnlineRule):
    """m ← μm + g, λ ← λ − ηm; without momentum λ ← λ − ηg."""

    momentum: float

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def move(self, value: Tensor, gradient: Tensor, slots: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return λ and m after a step. A new optimizer has no m yet; 0 gives the same first step."""
        if not self.momentum:
            return value.add(gradient, alpha=-self.lr), {}
        buffer = slots["momentum_buffer"].mul(self.momentum).add(gradient)
        return value.add(buffer, alpha=-self.lr), {"momentum_buffer": buffer}


def rule_of(outer: torch.optim.Optimizer, leaves: Params) -> OnlineRule | None:
    """Return the rule of an optimizer; None if it is not known here."""
    kind, groups = type(outer), outer.param_groups
    if kind not in (torch.optim.RMSprop, torch.optim.SGD) or has_hooks(outer) or len(groups) != 1:
        return None
    (group,) = groups
    if any(group.get(option) for option in UNKNOWN) or isinstance(group["lr"], Tensor):
        return None
    moved = {id(p) for p in group["params"]}
    common: dict[str, Any] = {"lr": group["lr"]}
    common["names"] = tuple(name for name, leaf in leaves.items() if id(leaf) in moved)
    if kind is torch.optim.SGD:
        return SGDRule(**common, momentum=group["momentum"])
    return None if group["momentum"] else RMSpropRule(**common, alpha=group["alpha"], eps=group["eps"])


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if `step` does more than the optimizer's own step: it has hooks, or a scheduler wraps it."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(hooks or "step" in vars(optimizer))


class OnlineStep(ABC):
    """Moves λ inside a round by ζ times the derivative of ‖Δ_t‖.

    Attributes:
        rule: the step as a pure function; None if it is not known.
    """

    rule: OnlineRule | None

    @abstractmethod
    def __call__(self, gradient: Params) -> None:
        """Move λ in place."""

    @abstractmethod
    def state(self) -> OnlineState:
        """Return λ and the optimizer's tensors, without copies of λ."""

    @abstractmethod
    def load(self, state: OnlineState, steps: int) -> None:
        """Continue from a state, after a call of this object and `steps` steps of the rule by an engine."""


class OptimizerStep(OnlineStep):
    """The step of a run's own outer optimizer.

    Args:
        outer: the optimizer of λ.
        leaves: λ as the parameters of the hyper module.
        zeta: ζ.
    """

    def __init__(self, outer: torch.optim.Optimizer, leaves: Params, zeta: float) -> None:
        self._outer, self._leaves = outer, leaves
        first = next(iter(leaves.values()))
        self._zeta = torch.full((), zeta, dtype=first.dtype, device=first.device)  # filled there: no wait for a copy
        self.rule = rule_of(outer, leaves)

    def __call__(self, gradient: Params) -> None:
        """Let the optimizer take a step, in place."""
        for name, value in scale(self._zeta, gradient).items():
            self._leaves[name].grad = value.detach().clone()
        self._outer.step()

    def state(self) -> OnlineState:
        """Return λ and the optimizer's tensors, without copies; those of a new optimizer are 0."""
        hyper = detach(self._leaves)
        names, slots = ((), ()) if self.rule is None else (self.rule.names, self.rule.slots)
        found = {slot: {name: self._slot(name, slot) for name in names} for slot in slots}
        return OnlineState(hyper, found, self._zeta)

    @torch.no_grad()
    def load(self, state: OnlineState, steps: int) -> None:
        """Continue from a state, after the optimizer's own first step and `steps` steps of the rule by an engine."""
        assert self.rule is not None
        for name in self.rule.names:
            leaf = self._leaves[name]
            leaf.copy_(state.hyper[name])
            if self.rule.slots:
                own = self._outer.state[leaf]
                own |= {slot: values[name].detach().clone() for slot, values in state.slots.items()}
                if "step" in own:
                    own["step"] += steps

    def _slot(self, name: str, slot: str) -> Tensor:
        leaf = self._leaves[name]
        found = self._outer.state[leaf].get(slot) if leaf in self._outer.state else None
        return torch.zeros_like(leaf) if found is None else found


def root_gradients(stride: int, measured: Sequence[tuple[Tensor | None, Params | None]], hyper: Params) -> list[Params]:
    """Return ∇_λ‖Δ_t‖ of every chain from q_t = ‖Δ_t‖² and its λ-derivative; it is 0 if Δ_t = 0."""
    return [
        scale(stride * half_inverse_root(summand), gradient)
        if summand is not None and gradient is not None
        else zeros_like(hyper)
        for summand, gradient in measured
    ]


def half_inverse_root(y: Tensor) -> Tensor:
    """Return the derivative 1/(2√y) of the root, and 0 at y = 0."""
    positive = y > 0
    return torch.where(positive, 0.5 / torch.where(positive, y, torch.ones_like(y)).sqrt(), torch.zeros_like(y))
