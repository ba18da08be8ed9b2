"""Clipped per-example gradients that stay bounded for every row: with a huge gradient, NaN, or an exception.

The privacy of a step rests on one fact: for every possible row, its contribution has a norm of at most γ, and nothing
else of the row is visible. NaN in the output or an exception would reveal that a certain row exists.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from pactune.errors import SettingError
from pactune.trees import Params, add

__all__ = ["Loss", "clip_row", "clipped_sums", "try_public_row"]

Loss = Callable[[Tensor, Tensor], Tensor]
MOST_GRADIENTS = 2**24  # elements of all per-example gradients in memory at once
MARGIN = 1 - 2**-20  # the missing share covers the float64 rounding of the norm, the products and a sum of 2³⁰ rows


def clip_row(gradient: Params, bound: float) -> Params:
    """Return g / max(1, ‖g‖/γ) in float64, with a norm of at most γ after rounding; zeros if g is not finite.

    The gradient is divided by its largest element before it is squared, so that no finite gradient overflows.

    >>> clip_row({"w": torch.tensor([3e38, 0.0])}, 0.5)["w"]
    tensor([0.5000, 0.0000], dtype=torch.float64)
    >>> clip_row({"w": torch.tensor([float("inf"), 1.0])}, 0.5)["w"]
    tensor([0., 0.], dtype=torch.float64)
    """
    exact = {name: g.double() for name, g in gradient.items()}
    finite = torch.stack([g.isfinite().all() for g in exact.values()]).all()
    exact = {name: torch.where(finite, g, 0.0) for name, g in exact.items()}
    largest = torch.stack([g.abs().amax() for g in exact.values() if g.numel()]).amax()
    unit = {name: g / torch.where(largest > 0, largest, 1.0) for name, g in exact.items()}
    length = torch.stack([u.square().sum() for u in unit.values()]).sum().sqrt().clamp_min(1.0)
    factor = torch.minimum(largest, MARGIN * bound / length)
    return {name: u * factor for name, u in unit.items()}


def clipped_sums(model: nn.Module, loss: Loss, params: Params, x: Tensor, y: Tensor, bound: float) -> Params:
    """Return Σ_i clip_γ(∇ℓ_i) of every chain, in float64. A row whose gradient cannot be computed adds nothing.

    Args:
        model: computes the forward.
        loss: the loss of a batch of one row.
        params: θ of every chain. Shapes (chains, ...).
        x: inputs. Shape (chains, h, ...).
        y: targets. Shape (chains, h, ...).
        bound: γ.
    """
    return _without_failures(_summing(model, loss, params, x.shape[1], bound), params, x, y)


def try_public_row(model: nn.Module, loss: Loss, params: Params, row: tuple[Tensor, Tensor]) -> None:
    """Compute the gradient sum of a public row, so that a mistake in the model or the loss raises an error.

    In the private steps a row that fails adds nothing and raises no error.

    Raises:
        SettingError: the gradient of the row cannot be computed.
    """
    chains = len(next(iter(params.values())))
    x, y = (torch.stack([torch.stack([part, part])] * chains) for part in row)
    try:
        _summing(model, loss, params, 2, 1.0)(params, x, y)
    except Exception as error:
        raise SettingError(
            f"the gradient of the public row (zeros, unless you pass `public_row`) cannot be computed: {error}; the "
            "loss must be a scalar for a batch of one row, and the model free of dropout, of branches on data and of "
            "buffers that it changes"
        ) from error


def _summing(model: nn.Module, loss: Loss, params: Params, rows: int, bound: float) -> Callable[..., Params]:
    """Return the function that clips and sums the gradients of all chains; it raises if a row does."""

    def example(values: Params, row: Tensor, target: Tensor) -> Params:
        def one(inner: Params) -> Tensor:
            return loss(functional_call(model, inner, (row[None],)), target[None])

        return clip_row(grad(one)(values), bound)

    def chain(values: Params, rows: Tensor, targets: Tensor) -> Params:
        found = vmap(example, in_dims=(None, 0, 0), randomness="error")(values, rows, targets)
        return {name: g.sum(0) for name, g in found.items()}

    size = sum(p[0].numel() for p in params.values()) * rows
    return vmap(chain, chunk_size=max(1, MOST_GRADIENTS // size))


def _without_failures(function: Callable[..., Params], params: Params, x: Tensor, y: Tensor) -> Params:
    """Return the sums over all rows except those that raise; they are found by halving the batch."""
    try:
        return function(params, x, y)
    except torch.OutOfMemoryError:
        raise  # it depends on the shapes, not on the content of a row
    except Exception:
        chains, rows = x.shape[:2]
        if chains > 1:
            parts = [
                _without_failures(function, {name: p[half] for name, p in params.items()}, x[half], y[half])
                for half in (slice(chains // 2), slice(chains // 2, None))
            ]
            return {name: torch.cat([part[name] for part in parts]) for name in params}
        if rows > 1:
            halves = (slice(rows // 2), slice(rows // 2, None))
            first, second = (_without_failures(function, params, x[:, half], y[:, half]) for half in halves)
            return add(first, second)
        return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
