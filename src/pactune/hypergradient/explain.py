"""Error messages for models that torch cannot differentiate as an estimator needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from pactune.errors import DataError, GradientError, PactuneError
from pactune.hypergradient.base import Estimator

__all__ = ["explaining", "is_cut", "second_order_message"]

FORWARD = re.compile(r"forward AD|forward-mode|jvp|make_dual|Expected.*tangent", re.IGNORECASE)
TWICE = re.compile(
    r"derivative for .* is not implemented|double.?backward|differentiate twice|once_differentiable", re.IGNORECASE
)


def is_cut(gradient: Iterable[Tensor]) -> bool:
    """Return True if the graph of a gradient ends at an operation that can be differentiated only once.

    Torch marks such an operation with an error node. It raises this error only if the path to the parameters leads
    through the node. Otherwise it silently takes the derivative as zero.
    """
    seen: set[Any] = set()
    waiting = [value.grad_fn for value in gradient]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith(("::Error", "::DelayedError", "NotImplemented")):
            return True
        seen.add(node)
        waiting += [next_node for next_node, _ in node.next_functions]
    return False


def second_order_message(risk_estimator: Estimator, path_estimator: Estimator, reason: str) -> str:
    """Return the message for a missing second derivative."""
    return (
        f"hypergradient={risk_estimator}, path_hypergradient={path_estimator}: this differentiates the gradient of R_T "
        "once more, and an operation of the model or a loss has no second derivative. Replace the operation "
        "(F.smooth_l1_loss for F.huber_loss, say); where λ enters through penalties or learning rates only, "
        "Truncated(1) for `hypergradient` and Truncated(0) for `path_hypergradient` need none, and FirstOrder() leaves "
        "the second derivatives of the loss out. "
        f"Torch says: {reason}"
    )


@contextmanager
def explaining(risk_estimator: Estimator, path_estimator: Estimator) -> Iterator[None]:
    """Replace torch's error about a missing derivative by one that names the estimators and the alternatives.

    Raises:
        GradientError: an operation of the model or of a loss has no forward-mode or no second derivative.
    """
    try:
        yield
    except PactuneError:
        raise
    except (NotImplementedError, RuntimeError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        if "more than 1 value per channel" in reason:
            raise DataError(
                "a mini-batch of one row has no batch statistics, and the model normalises by them; choose a "
                f"`batch_size` that leaves no single row over. Torch says: {reason}"
            ) from error
        used = f"hypergradient={risk_estimator}, path_hypergradient={path_estimator}"
        if FORWARD.search(reason):
            raise GradientError(
                f"{used}: ForwardMode needs forward-mode derivatives, and an operation of the model or a loss has "
                f"none; use Truncated(k) or Windowed(w). Torch says: {reason}"
            ) from error
        if TWICE.search(reason):
            raise GradientError(second_order_message(risk_estimator, path_estimator, reason)) from error
        raise
