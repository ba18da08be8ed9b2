"""The kernels that a forward pass with dual numbers runs: plain attention, and batch normalisation in few kernels.

PyTorch computes the tangent of a batch normalisation by some twenty kernels, a third of those of a ResNet with dual
numbers. But the Jacobian of the normalised values x̂ is symmetric: it takes a tangent to what the backward pass takes it
to as a cotangent, which is one kernel. The rest of the tangent, w'x̂ + b', is a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm

from pactune.hypergradient.gradients import second_order_kernels
from pactune.problem.inner_problem import InnerProblem

__all__ = ["dual_batch_norms", "dual_kernels"]

make_dual, unpack_dual = cast(Any, forward_ad.make_dual), cast(Any, forward_ad.unpack_dual)
batch_norm, batch_norm_backward = torch.ops.aten._batch_norm_impl_index, torch.ops.aten._batch_norm_impl_index_backward
INPUT_ALONE = [True, False, False]  # what a backward pass differentiates by


@contextmanager
def dual_kernels(problem: InnerProblem) -> Iterator[None]:
    """Let the forward passes of a problem take these kernels. Stacked runs have a batch normalisation of their own."""
    with second_order_kernels(True), nullcontext() if problem.runs else dual_batch_norms(problem.members[0].model):
        yield


@contextmanager
def dual_batch_norms(model: nn.Module) -> Iterator[None]:
    """Let the layers of a model normalise dual numbers in few kernels.

    The layers that have PyTorch's own `forward` get another one. A `TorchFunctionMode` would do it for every call of
    `batch_norm`, but costs as much time in all other functions as is saved.
    """
    layers = [m for m in model.modules() if type(m).forward is _BatchNorm.forward and "forward" not in m.__dict__]
    for layer in layers:
        layer.__dict__["forward"] = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward(layer: Any, x: Tensor) -> Tensor:
    """Return what the `forward` of the layer returns."""
    (value, slope), (weight, weight_slope), (bias, bias_slope) = map(_parts, (x, layer.weight, layer.bias))
    parts = [part for part in (value, slope, weight, weight_slope, bias, bias_slope) if part is not None]
    plain = all(part.dtype == value.dtype and not part.requires_grad for part in parts)
    if slope is None or not layer.training or not plain or value.numel() <= layer.num_features:
        return _BatchNorm.forward(layer, x)
    layer._check_input_dim(x)
    running: tuple[Any, Any] = (None, None)
    momentum = layer.momentum or 0.0
    if layer.track_running_stats:
        running = layer.running_mean, layer.running_var
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
            momentum = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    flags = (True, momentum, layer.eps, torch.backends.cudnn.enabled)
    found, mean, scale, reserved, kind = batch_norm(value, weight, bias, *running, *flags)
    saved = mean, scale, True, layer.eps, INPUT_ALONE, reserved
    tangent = batch_norm_backward(kind, value, slope, weight, *running, *saved)[0]
    if weight_slope is not None or bias_slope is not None:
        slopes = [torch.zeros_like(weight) if part is None else part for part in (weight_slope, bias_slope)]
        tangent = tangent + batch_norm(value, *slopes, None, None, *flags)[0]
    return cast(Tensor, make_dual(found, tangent))


def _parts(tensor: Tensor | None) -> tuple[Any, Any]:
    """Return the value and the slope of a dual number; None where there is none."""
    return (None, None) if tensor is None else unpack_dual(tensor)
