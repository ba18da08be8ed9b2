"""The penalty Σ λ|θ| of the lasso, with its proximal step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pactune.checks import POSITIVE, check_number
from pactune.problem.hooks import StepSizes
from pactune.problem.hyper import Granularity, PerParameter
from pactune.trees import Params

__all__ = ["L1"]


class L1(PerParameter):
    """The L1 penalty `Σ λ|θ|` with one λ per element, per tensor, or for the model; it makes parameters exactly 0.

    The penalty is not smooth, so it is no part of the training gradient. `SGD` and `Adam` apply its proximal step after
    their own: every `|θ|` is reduced by step size times λ, and stops at 0. Choose `per="global"` or `"tensor"` for the
    lasso and `"element"` for the weighted lasso. With a `WeightDecay` beside it in an `nn.ModuleDict` it is the elastic
    net.

    The parameters of this module are log λ, so that λ stays positive and an outer step changes it by a factor.

    Args:
        model: the model whose trainable parameters are penalised. To leave one out, delete its value:
            `del l1.values["bias"]` (not with `per="global"`).
        per: "element", "tensor" or "global".
        init: the initial value of λ, positive.

    Example:
        >>> l1 = L1(nn.Linear(3, 1, bias=False), per="tensor", init=0.5)
        >>> l1.prox({"weight": torch.tensor([[2.0, -0.25, 0.5]])}, {"weight": 1.0})["weight"].tolist()
        [[1.5, 0.0, 0.0]]
    """

    def __init__(self, model: nn.Module, *, per: Granularity = "element", init: float = 0.001) -> None:
        check_number("init", init, POSITIVE)
        super().__init__(model, per=per, init=math.log(init))

    def strengths(self, params: Params) -> Params:
        """Return λ by parameter name."""
        return {name: value.exp() for name, value in self._matched(params).items()}

    def value(self, params: Params) -> Tensor:
        """Return `Σ λ|θ|`."""
        terms = [(strength * params[name].abs()).sum() for name, strength in self.strengths(params).items()]
        return torch.stack(terms).sum()

    def prox(self, params: Params, step_sizes: StepSizes) -> Params:
        """Return `sign(θ)·max(|θ| − ηλ, 0)`, where η is the step size."""
        return {
            name: params[name] - _clipped(params[name], step_sizes[name] * strength)
            for name, strength in self.strengths(params).items()
        }

    def envelope_gradient(self, params: Params, step_sizes: StepSizes) -> Params:
        """Return θ/η clipped to ±λ: the gradient of Huber's function, which is λ sign(θ) where `|θ| > ηλ`."""
        return {
            name: _clipped(params[name] / step_sizes[name], strength)
            for name, strength in self.strengths(params).items()
        }


def _clipped(value: Tensor, bound: Tensor) -> Tensor:
    """Return a tensor clipped to ±bound, a bound that is not negative; differentiable in both."""
    return torch.clamp(value, -bound, bound)
