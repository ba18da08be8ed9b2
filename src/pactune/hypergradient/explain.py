"""What to say when torch cannot differentiate a model the way an estimator needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pactune.errors import GradientError, PactuneError
from pactune.hypergradient.base import Estimator

__all__ = ["explaining"]

FORWARD = re.compile(r"forward AD|forward-mode|jvp|make_dual|Expected.*tangent", re.IGNORECASE)
TWICE = re.compile(
    r"derivative for .* is not implemented|double.?backward|differentiate twice|once_differentiable", re.IGNORECASE
)


@contextmanager
def explaining(risk_estimator: Estimator, path_estimator: Estimator) -> Iterator[None]:
    """Turn torch's error about a missing derivative into one that names the estimators and the alternatives.

    Raises:
        GradientError: an operation of the model or of a loss has no forward-mode or no second derivative.
    """
    try:
        yield
    except PactuneError:
        raise
    except (NotImplementedError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0]
        used = f"hypergradient={risk_estimator}, path_hypergradient={path_estimator}"
        if FORWARD.search(reason):
            raise GradientError(
                f"{used}: ForwardMode needs forward-mode derivatives, and an operation of the model or a loss has "
                f"none; use Truncated(k) or Windowed(w). Torch says: {reason}"
            ) from error
        if TWICE.search(reason):
            raise GradientError(
                f"{used}: this differentiates the training gradient once more, and an operation of the model or a "
                "loss has no second derivative. Replace the operation (F.smooth_l1_loss for F.huber_loss, say); where "
                "λ enters through penalties or learning rates only, Truncated(1) for `hypergradient` and "
                f"Truncated(0) for `path_hypergradient` need none. Torch says: {reason}"
            ) from error
        raise
