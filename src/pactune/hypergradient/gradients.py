"""The gradient of a risk by autograd, and the kernels and the CUDA stream that compute it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from pactune.errors import GradientError
from pactune.trees import Params, split

__all__ = ["on_side_stream", "params_gradient", "second_order_kernels"]


def params_gradient(risk: Tensor, params: Params, *, graph: bool) -> Params:
    """Return the gradient of a risk; a parameter that the risk does not use gets zeros."""
    if not risk.requires_grad:
        raise GradientError(
            "a loss does not depend on the model's parameters; compute it from the model's output as a tensor, "
            "without .item(), .detach() or no_grad()"
        )
    whole = risk.sum() if risk.ndim else risk  # stacked runs do not depend on each other
    found = torch.autograd.grad(whole, list(params.values()), create_graph=graph, allow_unused=True)
    return split(found, params)[0]


@contextmanager
def on_side_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run the block on `stream`, after all work that the current stream has queued so far."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


class _PlainAttention:
    """Allow only the plain attention kernel, as `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)` does.

    Every gradient inside a graph enters this block. `sdpa_kernel` looks its functions up by name each time, which
    takes as long as several kernels of a small model. Here the look-up is done once.
    """

    _newer = ("overrideable",) if hasattr(torch._C, "_set_sdp_use_overrideable") else ()
    _kinds = ("math", "flash", "mem_efficient", "cudnn", *_newer)
    _get = tuple(getattr(torch._C, f"_get_{kind}_sdp_enabled") for kind in _kinds)
    _set = tuple(getattr(torch._C, f"_set_sdp_use_{kind}") for kind in _kinds)

    def __enter__(self) -> None:
        self._before = [get() for get in self._get]
        for kind, (put, enabled) in enumerate(zip(self._set, self._before, strict=True)):
            if enabled != (kind == 0):
                put(kind == 0)

    def __exit__(self, *_: object) -> None:
        for kind, (put, enabled) in enumerate(zip(self._set, self._before, strict=True)):
            if enabled != (kind == 0):
                put(enabled)


def second_order_kernels(graph: bool) -> AbstractContextManager[None]:
    """Allow only the plain attention kernel inside a graph: fused attention has no double backward."""
    return _PlainAttention() if graph else nullcontext()
