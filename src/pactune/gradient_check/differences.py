"""The derivative of a function of one number by finite differences, which knows when there is none.

A function with kinks or jumps (ReLU, max-pooling, a clamp, and training through them) is smooth between them.
Differences to either side agree where the step stays between two kinks, and disagree where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Slope", "slope"]

AGREE = 5e-6  # relative, between the differences to either side
STEPS = (1.0, 10.0, 0.1, 0.01)  # multiples of the step to try: larger against rounding, smaller against kinks
ROUNDING = 8 * torch.finfo(torch.float64).eps


class Slope(NamedTuple):
    """A derivative.

    Attributes:
        value: the four-point central difference; NaN where no step has differences that agree.
        noise: what rounding may add to it.
    """

    value: float
    noise: float


def slope(function: Callable[[float], Tensor], *, step: float, scale: float) -> Slope:
    """Return the derivative at 0.

    Args:
        function: in float64.
        step: the step at which truncation and rounding balance for a smooth function.
        scale: the size of a derivative below which differences need not agree in relative terms.
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
            return Slope(central, noise)
    return Slope(math.nan, math.nan)
