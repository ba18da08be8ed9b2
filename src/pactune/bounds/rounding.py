"""Print numbers rounded in the direction that keeps the statement true."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

__all__ = ["round_down", "round_up"]


def round_up(value: float, places: int = 4) -> str:
    """Return the value as text with `places` decimals, rounded up: for upper bounds and the numbers in them.

    >>> round_up(0.1), round_up(0.12341), round_up(1e-9), round_up(0.0)
    ('0.1000', '0.1235', '0.0001', '0.0000')
    """
    return _rounded(value, places, ROUND_CEILING)


def round_down(value: float, places: int = 4) -> str:
    """Return the value as text with at most `places` decimals, rounded down: for lower bounds and confidences.

    >>> round_down(0.95), round_down(0.99999), round_down(1 - 1e-9, 12)
    ('0.95', '0.9999', '0.999999999')
    """
    text = _rounded(value, places, ROUND_FLOOR)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _rounded(value: float, places: int, rounding: str) -> str:
    if not math.isfinite(value):
        return repr(value)
    exact = Decimal(repr(float(value)))  # `repr` is the shortest text of this float
    return f"{exact.quantize(Decimal(1).scaleb(-places), rounding=rounding) + 0:f}"  # never -0.0000
