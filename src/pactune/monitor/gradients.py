"""The two gradients of a monitored step, and the state of the model that computing them must not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pactune.errors import DataError, GradientError, PactuneError, SettingError
from pactune.problem.model_inputs import split_target
from pactune.problem.tensor_slots import TensorSlots, owner
from pactune.streams import GLOBAL_STATE
from pactune.trees import Params, split

__all__ = [
    "BatchLoss",
    "as_batch_loss",
    "buffer_slots",
    "forked",
    "mean_over_processes",
    "precise",
    "risk_of",
    "stored_gradient",
]

BatchLoss = Callable[[nn.Module, Any], Tensor]


def as_batch_loss(loss: Callable[..., Tensor] | None, batch_loss: BatchLoss | None) -> BatchLoss:
    """Return the risk of a batch; with `loss` a batch is `(inputs, target)`."""
    if batch_loss is not None:
        return batch_loss
    assert loss is not None

    def risk(model: nn.Module, batch: Any) -> Tensor:
        parts = split_target(batch)
        if parts is None:
            raise DataError("with `loss` every batch must be a tuple (inputs, target); otherwise pass `batch_loss`")
        return loss(parts.apply(model), parts.target)

    return risk


def risk_of(risk: BatchLoss, model: nn.Module, batch: Any, role: str) -> Tensor:
    """Return the risk of a batch, and check that it is a scalar that can be differentiated."""
    try:
        value = risk(model, batch)
    except (PactuneError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"the loss fails on `{role}_batch`: {error}") from error
    if not isinstance(value, Tensor) or value.ndim != 0:
        what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SettingError(f"the loss must be a scalar tensor, the mean over the rows, got {what}")
    if not value.requires_grad:
        raise GradientError(
            "the loss does not depend on the model's parameters; compute it from the model's output as a tensor, "
            "without .item(), .detach() or no_grad()"
        )
    return value


def stored_gradient(params: Params, grad_scale: float) -> Params:
    """Return the gradient in `.grad` over `grad_scale`; a parameter without `.grad` was not used and has gradient 0."""
    found = [None if p.grad is None else p.grad.detach() for p in params.values()]
    if all(value is None for value in found):
        raise GradientError(
            "`train_batch=None` reads the training gradient from `.grad`, and no parameter has one; call `step` after "
            "backward() and before zero_grad(), or hand in the training batch"
        )
    return {name: value / grad_scale for name, value in precise(split(found, params)[0]).items()}


def precise(tree: Params) -> Params:
    """Return tensors of at least float32."""
    half = (torch.float16, torch.bfloat16)
    return {name: value.float() if value.dtype in half else value for name, value in tree.items()}


def mean_over_processes(gradient: Params) -> Params:
    """Return the mean over all processes, which one message computes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise SettingError("`average=True` needs torch.distributed: call init_process_group first, or leave it out")
    flat = torch.cat([value.reshape(-1) for value in precise(gradient).values()])
    torch.distributed.all_reduce(flat)
    sizes = [value.numel() for value in gradient.values()]
    parts = torch.split_with_sizes(flat / torch.distributed.get_world_size(), sizes)
    return {name: part.view(gradient[name].shape) for name, part in zip(gradient, parts, strict=True)}


def buffer_slots(model: nn.Module) -> tuple[TensorSlots, Params]:
    """Return the slots of the buffers, all of them for a shared buffer, and the buffers by name."""
    slots, names = TensorSlots(), dict[int, str]()
    for name, buffer in model.named_buffers(remove_duplicate=False):
        slots.add(names.setdefault(id(buffer), name), *owner(model, name))
    return slots, dict(model.named_buffers())


@contextmanager
def forked(model: nn.Module, key: int) -> Iterator[None]:
    """Seed the generators of every device that the model is on, and restore them on exit."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with GLOBAL_STATE, torch.random.fork_rng(devices=list(devices)):
        torch.default_generator.manual_seed(key)
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(key)
        yield
