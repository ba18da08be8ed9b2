"""Layers of stacked runs, by operations that `torch.vmap` maps without slow kernels.

`torch.vmap` turns the convolutions of R runs into one convolution with R groups, for which cuDNN has no fast kernels.
Here a convolution is a product of the weights with the columns of its input, the pixels under the kernel at each place.
The products of all runs are then one batched product. Activations stay in the channels-last layout in between.

On a CPU the gradient of a linear layer's weights becomes a batched product XᵀG, which is several times slower than GᵀX
if G has few columns. The layer is computed so that its gradient has the second form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

__all__ = [
    "StackedLayers",
    "batch_norm",
    "conv2d",
    "has_stacked_layers",
    "layers_for",
    "linear",
    "only_products",
]

LAYERS = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase)  # slow under `torch.vmap` on a CUDA device
_only_products = ContextVar("only_products", default=False)
FEW = 16  # outputs of a linear layer; with more of them the transposes cost what its gradient gains
LARGEST = 2**25  # bytes of a run's columns; a larger convolution fills the device by itself


class StackedLayers(TorchFunctionMode):
    """While it is active, `conv2d`, `batch_norm` and `linear` are computed by the functions of this file."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or its form for stacked runs."""
        del types
        return _FORMS.get(func, func)(*args, **(kwargs or {}))


def layers_for(model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Return `StackedLayers` if a model has such layers; a mode costs time in every function of torch."""
    wanted = has_stacked_layers(model) or (device.type == "cpu" and _has_narrow_layers(model))
    return StackedLayers() if wanted else nullcontext()


def has_stacked_layers(model: nn.Module) -> bool:
    """Return True if a model has convolutions or batch normalisation, which `StackedLayers` computes in another way."""
    return any(isinstance(module, LAYERS) for module in model.modules())


def _has_narrow_layers(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Linear) and module.out_features <= FEW for module in model.modules())


@contextmanager
def only_products() -> Iterator[None]:
    """Refuse all convolutions that are not computed as one product: stacked, they are slow."""
    token = _only_products.set(True)
    try:
        yield
    finally:
        _only_products.reset(token)


class _Axis(NamedTuple):
    """A convolution along one axis of its input.

    Attributes:
        places: the length of the output.
        first: the first tap of the kernel that meets a pixel; the taps before it meet padding alone.
        taps: the number of taps from there to the last one that meets a pixel.
        before: zeros to add before the input; negative to leave out pixels.
        after: zeros to add after it.
    """

    places: int
    first: int
    taps: int
    before: int
    after: int

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, padding: int, dilation: int) -> _Axis:
        """Return the axis for an input of `size` pixels.

        >>> _Axis.of(1, 3, 1, 1, 1)  # a kernel of three taps on a single pixel: only its centre meets it
        _Axis(places=1, first=1, taps=1, before=0, after=0)
        """
        places = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        starts = range(-padding, -padding + places * stride, stride)
        met = [tap for tap in range(kernel) if any(0 <= start + tap * dilation < size for start in starts)]
        met = met or [0]
        first, taps = met[0], met[-1] - met[0] + 1
        before = padding - first * dilation
        window = (places - 1) * stride + dilation * (taps - 1) + 1
        return cls(places, first, taps, before, window - size - before)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return `torch.conv2d`, as one product unless it has groups or its columns take too much memory.

    Raises:
        NotImplementedError: inside `only_products`, if it is not one product.
    """
    strides, dilations = _pair(stride), _pair(dilation)
    paddings = _paddings(padding, weight.shape[2:], dilations)
    if groups != 1 or x.ndim != 4 or paddings is None:
        return _other(torch.conv2d, x, weight, bias, stride, padding, dilation, groups)
    sizes = zip(x.shape[2:], weight.shape[2:], strides, paddings, dilations, strict=True)
    rows, columns = (_Axis.of(*size) for size in sizes)
    kernel = weight[:, :, rows.first : rows.first + rows.taps, columns.first : columns.first + columns.taps]
    flat = kernel.permute(0, 2, 3, 1).reshape(len(weight), -1)
    if x.shape[0] * rows.places * columns.places * flat.shape[1] * x.element_size() > LARGEST:
        return _other(torch.conv2d, x, weight, bias, stride, padding, dilation, groups)
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, columns.before, columns.after, rows.before, rows.after))
    for axis, taps, step, gap in zip((1, 2), (rows.taps, columns.taps), strides, dilations, strict=True):
        pixels = pixels.unfold(axis, gap * (taps - 1) + 1, step)[..., ::gap]  # the taps become the last axis
    found = pixels.permute(0, 1, 2, 4, 5, 3).reshape(-1, flat.shape[1]) @ flat.t()
    if bias is not None:
        found = found + bias
    return found.reshape(len(x), rows.places, columns.places, -1).permute(0, 3, 1, 2)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return `torch.nn.functional.batch_norm`; it updates the running statistics as that does."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    if training:
        variance, mean = torch.var_mean(x, axes, correction=0)
        if running_mean is not None and running_var is not None:
            rows = x.numel() // x.shape[1]
            with torch.no_grad():
                running_mean.mul_(1 - momentum).add_(momentum * mean)
                running_var.mul_(1 - momentum).add_(momentum * rows / max(rows - 1, 1) * variance)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, variance = running_mean, running_var
    factor = torch.rsqrt(variance + eps)
    factor = factor if weight is None else factor * weight
    shift = -mean * factor if bias is None else bias - mean * factor
    shape = (-1, *[1] * (x.ndim - 2))
    return torch.addcmul(shift.reshape(shape), x, factor.reshape(shape))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `torch.nn.functional.linear`; on a CPU, with few outputs, as the transpose of W Xᵀ."""
    if x.device.type != "cpu" or x.ndim < 2 or weight.ndim != 2 or len(weight) > FEW:
        return F.linear(x, weight, bias)
    product = (weight @ x.flatten(0, -2).t()).t()
    found = product.contiguous().view(*x.shape[:-1], len(weight))  # contiguous, since models may take views of it
    return found if bias is None else found + bias


def _other(function: Callable[..., Tensor], x: Tensor, *settings: Any, **named: Any) -> Tensor:
    """Return a convolution as `torch.vmap` computes it."""
    if _only_products.get():
        raise NotImplementedError(f"a convolution of images of shape {tuple(x.shape)} is not faster stacked")
    return function(x, *settings, **named)


_OTHERS = (torch.conv1d, torch.conv3d, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.conv2d: conv2d,
    F.batch_norm: batch_norm,
    F.linear: linear,
    **{function: partial(_other, function) for function in _OTHERS},
}


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value) * (2 // len(value))


def _paddings(padding: Any, kernel: Iterable[int], dilations: Iterable[int]) -> tuple[int, int] | None:
    """Return the padding of both axes; None if it differs between the two ends of an axis."""
    if not isinstance(padding, str):
        return _pair(padding)
    if padding == "valid":
        return 0, 0
    total = [gap * (taps - 1) for taps, gap in zip(kernel, dilations, strict=True)]
    return None if any(one % 2 for one in total) else (total[0] // 2, total[1] // 2)
