"""The mixed derivative ∂⟨∇_θ R_T, c⟩/∂λ of large models without a double backward.

⟨∇_θ R_T, c⟩ is the slope of R_T along c. A forward pass with dual numbers computes it, and one backward pass takes its
λ-gradient. A double backward through convolutions and batch normalisation takes about twice as long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from pactune.hypergradient.adjoints import edge_vjp, vjp
from pactune.hypergradient.records import MOST_NUMBERS, LinearizedGradient, StepRecord
from pactune.trees import Params, dot, leaves, norm, sub

__all__ = ["MixedDerivative", "slope_gradient"]

log = logging.getLogger("pactune.hypergradient")
make_dual, unpack_dual = cast(Any, forward_ad.make_dual), cast(Any, forward_ad.unpack_dual)
SLOPE_TOLERANCE = 1e-3  # relative to the norms of both factors, in float32
TOLERANCE = 2e-2  # relative, in float32, whose convolutions may use TF32; a forgotten part of a derivative is larger


class MixedDerivative:
    """Decides how the mixed derivative of a run is computed: by slopes, or by a double backward.

    Not every operation has a derivative in forward mode. And what a loss computes under `torch.no_grad` is a constant
    for a backward pass but not for a forward one. So every slope is compared with ⟨∇_θ R_T, c⟩, whose gradient the step
    has from a backward pass. Both ways are compared in the first call, in the later calls 1, 2, 4, 8, …, and if a slope
    is wrong. If they differ, or if the slope cannot be computed, the double backward is used from then on.
    """

    def __init__(self) -> None:
        self._works: bool | None = None  # None before the first comparison
        self._calls = 0

    def takes_slopes(self, record: StepRecord) -> bool:
        """Return True for a large step, unless a comparison has failed. A small one is faster in a graph."""
        return self._works is not False and record.numbers > MOST_NUMBERS

    def compute(
        self,
        record: StepRecord,
        cotangent: Params,
        risk: Callable[[Params, Params], Tensor],
        linearize: Callable[[StepRecord], LinearizedGradient],
    ) -> Params:
        """Return ∂⟨∇_θ R_T, c⟩/∂λ of a step.

        Args:
            record: the step.
            cotangent: c.
            risk: (θ, λ) ↦ R_T on the mini-batch of the step.
            linearize: returns ∇_θ R_T of the step inside a graph.
        """
        by_slope = partial(slope_gradient, risk, record.state.params, record.hyper, cotangent)
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        recording = get_proxy_mode() is not None
        if self._works and (capturing or (not recording and not self._compares())):
            slope, found = by_slope()
            if capturing or _is_slope_of(record, cotangent, slope):
                return found
        linearized = linearize(record)
        wanted = edge_vjp(linearized.edges, cotangent, linearized.hyper)[0]
        if self._works is False or capturing or recording:
            return wanted
        agreeing = _agreeing(by_slope, wanted)
        self._works = agreeing is not None
        return wanted if agreeing is None else agreeing

    def _compares(self) -> bool:
        """Count a call; return True if both ways are compared in it."""
        self._calls += 1
        return self._calls & (self._calls - 1) == 0


def _is_slope_of(record: StepRecord, cotangent: Params, slope: Tensor) -> bool:
    """Return True if a slope is ⟨∇_θ R_T, c⟩ up to rounding."""
    gradient = record.linearized.gradient if record.linearized else {}
    if not gradient:
        return True
    tolerance = SLOPE_TOLERANCE if slope.dtype != torch.float64 else 1e-8
    allowed = tolerance * norm(gradient) * norm(cotangent)
    return bool((slope - dot(gradient, cotangent)).abs() <= allowed)


def _agreeing(by_slope: Callable[[], tuple[Tensor, Params]], wanted: Params) -> Params | None:
    """Return the derivative by the slope if it equals the wanted one up to rounding."""
    try:
        _, found = by_slope()
    except RuntimeError as error:  # NotImplementedError is one
        log.info("the mixed derivative takes a double backward: %s", str(error).partition("\n")[0])
        return None
    dtype = next(iter(wanted.values())).dtype
    allowed = (TOLERANCE if dtype != torch.float64 else 1e-6) * norm(wanted) + torch.finfo(dtype).tiny
    if bool(norm(sub(found, wanted)) <= allowed):
        return found
    log.info("the mixed derivative takes a double backward: forward mode gives another one")
    return None


def slope_gradient(
    risk: Callable[[Params, Params], Tensor], params: Params, hyper: Params, direction: Params
) -> tuple[Tensor, Params]:
    """Return the slope of a risk along a direction of θ, summed over stacked runs, and its λ-gradient.

    Args:
        risk: (θ, λ) ↦ the risk, or the risks of stacked runs.
        params: θ.
        hyper: λ.
        direction: the direction, with a tensor for every parameter.
    """
    lambdas = leaves(hyper)
    with torch.enable_grad(), forward_ad.dual_level():
        dual = {name: make_dual(p.detach(), direction[name]) for name, p in params.items()}
        slope = unpack_dual(risk(dual, lambdas)).tangent
    if slope is None:
        return next(iter(params.values())).new_zeros(()), vjp([], lambdas)[0]
    return slope.detach().sum(), vjp([({"": slope}, {"": torch.ones_like(slope)})], lambdas)[0]
