"""The derivative of a function of one number by finite differences; NaN if it cannot be found.

A function with kinks or jumps (ReLU, max-pooling, a clamp, and training through them) is smooth between them. The
differences to both sides agree if the steps stay between two kinks, and disagree if they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Derivative", "derivative"]

AGREE = 5e-6  # relative tolerance between the differences to both sides
STEPS = (1.0, 10.0, 0.1, 0.01)  # multiples of the step to try: larger against rounding, smaller against kinks
ROUNDING = 8 * torch.finfo(torch.float64).eps


class Derivative(NamedTuple):
    """A derivative.

    Attributes:
        value: the four-point central difference; NaN if the differences agree at no step.
        noise: a bound on its rounding error.
    """

    value: float
    noise: float


def derivative(function: Callable[[float], Tensor], *, step: float, scale: float) -> Derivative:
    """Return the derivative at 0.

    Args:
        function: the function, in float64.
        step: the step at which truncation and rounding balance for a smooth function.
        scale: the usual size of a derivative; smaller derivatives must agree relative to this size.
    """
    here = float(function(0.0))
    for width in (step * factor for factor in STEPS):
        up, up_twice, down, down_twice = (float(function(side * width)) for side in (1, 2, -1, -2))
        forward = (4 * up - up_twice - 3 * here) / (2 * width)
        backward = (3 * here - 4 * down + down_twice) / (2 * width)
        central = (8 * (up - down) - (up_twice - down_twice)) / (12 * width)
        noise = ROUNDING * abs(here) / width
        allowed = AGREE * max(abs(central), scale) + noise
        if max(abs(forward - backward), abs(forward - central)) <= allowed:
            return Derivative(central, noise)
    return Derivative(math.nan, math.nan)
