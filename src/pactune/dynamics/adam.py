"""Adam, with the penalty decoupled by default (AdamW)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pactune.checks import BELOW_ONE, POSITIVE, Rule, check_flag, check_number, shown
from pactune.dynamics.base import (
    Dynamics,
    Number,
    Schedule,
    Slots,
    StepAdjoint,
    StepInputs,
    check_clip,
    check_positive,
    coupled,
    coupled_adjoint,
    decay,
    proximal,
    step_size,
)
from pactune.errors import SettingError
from pactune.trees import Params, add, blocks, clip, map_tree, scale, zeros_like

__all__ = ["Adam"]

Tensors = list[Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True)
class Adam(Dynamics):
    """Adam (Kingma and Ba): the same numbers as `torch.optim.Adam`.

    Penalties with a `prox` act after the step, with the step size η/(√v̂ + ε) of each element.

    Args:
        lr: η, a number or a function of the step.
        betas: decay of the two moving averages.
        eps: added to the root of the second one.
        decoupled: θ ← θ' − η ∇penalty(θ') after the Adam step; False adds the penalty to the gradient.
        clip: clip the gradient to this norm before it enters the averages; None clips nothing. The penalty is part of
            it unless `decoupled`.
    """

    lr: Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled: bool = True
    clip: float | None = None

    applies_prox = True

    def __post_init__(self) -> None:
        check_positive("lr", self.lr)
        check_clip(self.clip)
        check_number("eps", self.eps, POSITIVE)
        if not (isinstance(self.betas, (tuple, list)) and len(self.betas) == 2):
            raise SettingError(f"`betas` must be two numbers in [0, 1), got {shown(self.betas)}")
        for beta in self.betas:
            check_number("betas", beta, Rule("two numbers in [0, 1)", BELOW_ONE.holds))
        check_flag("decoupled", self.decoupled)

    def slots(self, params: Params) -> Slots:
        """Return the two moving averages, both 0."""
        return {"first": zeros_like(params), "second": zeros_like(params)}

    def numbers(self, step: int) -> dict[str, float]:
        """Return η_t, η_t over the first bias correction, and the root of the second."""
        eta, (beta1, beta2) = self.learning_rate(step), self.betas
        return {"lr": eta, "size": eta / (1 - beta1 ** (step + 1)), "root": (1 - beta2 ** (step + 1)) ** 0.5}

    def step(self, params: Params, slots: Slots, inputs: StepInputs) -> tuple[Params, Slots]:
        """Return θ_{t+1} and the moving averages after the step."""
        beta1, beta2 = self.betas
        gradient = clip(inputs.gradient, self.clip) if self.decoupled else coupled(params, inputs, self.clip)
        if not (inputs.factors or torch.is_grad_enabled()):
            moved, slots = self._fused(params, slots, gradient, inputs.numbers, donated=inputs.donated)
            return self._penalised(moved, slots, inputs), slots
        first = map_tree(lambda m, g: torch.lerp(m, g, 1 - beta1), slots["first"], gradient)
        second = map_tree(lambda v, g: (v * beta2).addcmul(g, g, value=1 - beta2), slots["second"], gradient)
        moved = {}
        for name, p in params.items():
            size = step_size(inputs.numbers["size"], inputs.factors, name)
            moved[name] = p - size * (first[name] / self._denominator(second[name], inputs))
        slots = {"first": first, "second": second}
        return self._penalised(moved, slots, inputs), slots

    def _penalised(self, moved: Params, slots: Slots, inputs: StepInputs) -> Params:
        """Return the parameters after the decoupled penalty and the proximal step."""
        moved, eta = decay(moved, inputs, inputs.numbers["lr"]) if self.decoupled else moved, inputs.numbers["lr"]

        def size(name: str) -> Number:
            # A number over a tensor is the product with its reciprocal, and a tensor over a tensor is rounded once. A
            # recording has tensors in place of numbers and must give the same bits.
            return step_size(eta, inputs.factors, name) * (1 / self._denominator(slots["second"][name], inputs))

        return proximal(moved, inputs, size)

    def _denominator(self, second: Tensor, inputs: StepInputs) -> Tensor:
        """Return √v̂ + ε."""
        return _root(second) / inputs.numbers["root"] + self.eps

    def _fused(
        self, params: Params, slots: Slots, gradient: Params, numbers: Mapping[str, Number], *, donated: bool = False
    ) -> tuple[Params, Slots]:
        """Make the same step with one kernel per operation for all tensors; it cannot be differentiated."""
        first, second = (dict(slots[slot]) for slot in ("first", "second"))
        moved = dict(params)
        for names in blocks(params) if donated else [list(params)]:
            trees = (moved, first, second)
            p, m, v, g = ([tree[name] for name in names] for tree in (*trees, gradient))
            for tree, values in zip(trees, self._block(p, m, v, g, numbers, donated=donated), strict=True):
                tree.update(zip(names, values, strict=True))
        return moved, {"first": first, "second": second}

    def _block(
        self, p: Tensors, m: Tensors, v: Tensors, g: Tensors, numbers: Mapping[str, Number], *, donated: bool
    ) -> tuple[Tensors, Tensors, Tensors]:
        """Return the parameters and the moving averages of some tensors after the step, in place if `donated`."""
        beta1, beta2 = self.betas
        if donated:
            torch._foreach_lerp_(m, g, 1 - beta1)
            torch._foreach_mul_(v, beta2)
        else:
            m, v = torch._foreach_lerp(m, g, 1 - beta1), torch._foreach_mul(v, beta2)
        torch._foreach_addcmul_(v, g, g, 1 - beta2)
        denominator = torch._foreach_sqrt(v)
        torch._foreach_div_(denominator, numbers["root"])
        torch._foreach_add_(denominator, self.eps)
        update = torch._foreach_mul(m, -numbers["size"])
        torch._foreach_div_(update, denominator)
        moved, other = (p, update) if donated else (update, p)
        torch._foreach_add_(moved, other)
        return moved, m, v

    def pull_back(
        self, params: Params, slots: Slots, inputs: StepInputs, by_params: Params, by_slots: Slots
    ) -> StepAdjoint | None:
        """Return the adjoint in closed form, or None with a clip.

        With a decoupled penalty the adjoint goes through the decay first.
        """
        if self.clip is not None:
            return None
        gradient = inputs.gradient if self.decoupled else coupled(params, inputs)
        eta, numbers = inputs.numbers["lr"], inputs.numbers
        moved, after = self._fused(params, slots, gradient, numbers)
        if not self.decoupled or inputs.penalty_product is None:
            by_gradient, before = self._moments_adjoint(gradient, after, by_params, by_slots, numbers)
            if self.decoupled:
                return StepAdjoint(by_gradient, by_params, before)
            return coupled_adjoint(by_gradient, by_params, before, params, inputs)
        by_decay = scale(-eta, by_params)
        by_moved = add(by_params, inputs.penalty_product(moved, by_decay))
        by_gradient, before = self._moments_adjoint(gradient, after, by_moved, by_slots, numbers)
        return StepAdjoint(by_gradient, by_moved, before, moved, by_decay)

    def _moments_adjoint(
        self, gradient: Params, after: Slots, by_moved: Params, by_slots: Slots, numbers: Mapping[str, Number]
    ) -> tuple[Params, Slots]:
        """Pull the derivative with respect to θ − η m̂/(√v̂ + ε) back to the gradient and to the moving averages.

        With r = √v/c₂ + ε and c₁, c₂ the bias corrections: dm = −(η/c₁)/r and dv = (η/c₁) m/(2 c₂ r² √v), where v = 0
        has dv = 0 (see `_root`).
        """
        beta1, beta2 = self.betas
        names = list(gradient)
        m, v, g, a = ([tree[name] for name in names] for tree in (after["first"], after["second"], gradient, by_moved))
        root = torch._foreach_sqrt(v)
        denominator = torch._foreach_div(root, numbers["root"])
        torch._foreach_add_(denominator, self.eps)
        by_first = torch._foreach_div(a, denominator)
        torch._foreach_mul_(by_first, -numbers["size"])
        by_second = torch._foreach_mul(by_first, m)
        torch._foreach_div_(by_second, denominator)
        for value in root:
            value.masked_fill_(value == 0, float("inf"))
        torch._foreach_div_(by_second, root)
        torch._foreach_mul_(by_second, -0.5 / numbers["root"])
        for slot, found in (("first", by_first), ("second", by_second)):
            if slot in by_slots:
                torch._foreach_add_(found, [by_slots[slot][name] for name in names])
        by_gradient = torch._foreach_mul(by_second, g)
        torch._foreach_mul_(by_gradient, 2 * (1 - beta2))
        torch._foreach_add_(by_gradient, by_first, alpha=1 - beta1)
        torch._foreach_mul_(by_first, beta1)
        torch._foreach_mul_(by_second, beta2)
        named = [dict(zip(names, values, strict=True)) for values in (by_gradient, by_first, by_second)]
        return named[0], {"first": named[1], "second": named[2]}


def _root(v: Tensor) -> Tensor:
    """Return √v with a finite derivative at v = 0.

    A weight whose input is always 0 has gradient 0 and v = 0. Its moving average in the numerator is 0 too, so the
    derivative of the step through √v is 0, and not the 0·∞ of autograd.
    """
    if not v.requires_grad:
        return v.sqrt()
    zero = v == 0
    return torch.where(zero, v, v.masked_fill(zero, 1.0).sqrt())
