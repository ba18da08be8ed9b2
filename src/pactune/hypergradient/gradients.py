"""The gradient of a risk by autograd, and the kernels and the CUDA stream that compute it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge

from pactune.errors import GradientError
from pactune.trees import Params, split

__all__ = ["backward_pass", "check_autograd", "on_side_stream", "params_gradient", "second_order_kernels"]

PLAIN = frozenset({Tensor, nn.Parameter, GradientEdge})


def backward_pass(
    outputs: Sequence[Tensor] | Sequence[GradientEdge],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    retain: bool = False,
    graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return what `torch.autograd.grad` returns with `allow_unused`: None for an input that no output depends on.

    Plain tensors on a CPU go to the engine of autograd at once. The checks of `torch.autograd.grad`, which are written
    in Python, take as long as the backward pass of a small model. The engine compares shapes again.

    Args:
        outputs: functions of the inputs, or their edges in a graph.
        inputs: the inputs.
        cotangents: a tensor for every output, in its shape.
        retain: keep the graph.
        graph: compute the result inside a new graph.
    """
    if inputs[0].is_cpu and PLAIN.issuperset(map(type, (*outputs, *inputs))):
        engine: Any = Variable._execution_engine
        found: tuple[Tensor | None, ...] = engine.run_backward(
            tuple(outputs), tuple(cotangents), retain or graph, graph, tuple(inputs), True, accumulate_grad=False
        )
        return found
    return torch.autograd.grad(
        outputs, inputs, cotangents, retain_graph=retain or graph, create_graph=graph, allow_unused=True
    )


def check_autograd(caller: str) -> None:
    """Raise inside `torch.inference_mode`, where autograd cannot be switched on. Inside `torch.no_grad` it can."""
    if torch.is_inference_mode_enabled():
        raise GradientError(
            f"`{caller}` computes gradients, and inside torch.inference_mode() there are none; call it outside that "
            "block, or use torch.no_grad() in its place"
        )


def params_gradient(risk: Tensor, params: Params, *, graph: bool) -> Params:
    """Return the gradient of a risk; a parameter that the risk does not use gets zeros."""
    if not risk.requires_grad:
        raise GradientError(
            "a loss does not depend on the model's parameters; compute it from the model's output as a tensor, "
            "without .item(), .detach() or no_grad()"
        )
    whole = risk.sum() if risk.ndim else risk  # stacked runs do not depend on each other
    found = backward_pass([whole], list(params.values()), [torch.ones_like(whole)], graph=graph)
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
