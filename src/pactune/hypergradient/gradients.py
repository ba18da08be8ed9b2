"""The gradient of a risk by autograd, and the kernels and the CUDA stream that compute it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

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


def second_order_kernels(graph: bool) -> AbstractContextManager[None]:
    """Allow only the plain attention kernel inside a graph: fused attention has no double backward."""
    return sdpa_kernel(SDPBackend.MATH) if graph else nullcontext()
