"""Checks of single arguments, for all public functions.

Each function raises a `SettingError` that names the argument, its rule and the value. A number is an `int` or a
`float`; True, False, texts and tensors are not accepted as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

from pactune.errors import SettingError

__all__ = [
    "BELOW_ONE",
    "FINITE",
    "NOT_NEGATIVE",
    "POSITIVE",
    "PROBABILITY",
    "SHARE",
    "Rule",
    "check_choice",
    "check_count",
    "check_flag",
    "check_number",
    "check_seed",
    "check_type",
    "is_number",
    "shown",
]

MOST = 2**63 - 1  # the largest whole number that a tensor can hold
LONGEST = 120  # characters of a value in a message


class Rule(NamedTuple):
    """A rule for a number.

    Attributes:
        words: completes "`name` must be …".
        holds: returns True if a number keeps the rule; it is called with numbers only.
    """

    words: str
    holds: Callable[[float], bool]


FINITE = Rule("a finite number", math.isfinite)
POSITIVE = Rule("a positive finite number", lambda value: 0 < value < math.inf)
NOT_NEGATIVE = Rule("a finite number ≥ 0", lambda value: 0 <= value < math.inf)
PROBABILITY = Rule("in (0, 1)", lambda value: 0 < value < 1)
SHARE = Rule("in [0, 1]", lambda value: 0 <= value <= 1)
BELOW_ONE = Rule("in [0, 1)", lambda value: 0 <= value < 1)


def is_number(value: object) -> TypeGuard[float]:
    """Return True if a value is a number that fits into 64 bits; NaN and infinities are numbers too.

    >>> is_number(0.5), is_number(True), is_number("0.5"), is_number(10**400)
    (True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) <= MOST


def check_number(name: str, value: object, rule: Rule, *, none: str = "", hint: str = "") -> None:
    """Raise unless a value is a number that keeps a rule.

    Args:
        name: the name of the argument.
        value: its value.
        rule: the rule.
        none: the meaning of None, for the message; empty if None is not allowed.
        hint: a remedy, for the end of the message.
    """
    if none and value is None:
        return
    if not is_number(value) or not rule.holds(float(value)):
        other = f" or None {none}" if none else ""
        if not isinstance(value, float) and not is_number(value) and hasattr(value, "__float__"):
            hint = "write float(...) around it"
        raise SettingError(f"`{name}` must be {rule.words}{other}, got {shown(value)}{hint and '; ' + hint}")


def check_count(name: str, value: object, least: int = 1, *, none: str = "", words: str = "") -> None:
    """Raise unless a value is a whole number of at least `least`.

    Args:
        name: the name of the argument.
        value: its value.
        least: the smallest number allowed.
        none: the meaning of None, for the message; empty if None is not allowed.
        words: the rule in words, in place of "a whole number ≥ …".
    """
    if none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        rule = words or f"a whole number ≥ {least}"
        other = f" or None {none}" if none else ""
        hint = "; write int(...) around it" if not isinstance(value, int) and hasattr(value, "__index__") else ""
        raise SettingError(f"`{name}` must be {rule}{other}, got {shown(value)}{hint}")


def check_seed(name: str, value: object) -> None:
    """Raise unless a value is a whole number of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not -MOST - 1 <= value <= MOST:
        raise SettingError(f"`{name}` must be a whole number of at most 64 bits, got {shown(value)}")


def check_flag(name: str, value: object, *, none: str = "") -> None:
    """Raise unless a value is True or False; a non-empty `none` allows None and gives its meaning."""
    if not isinstance(value, bool) and not (none and value is None):
        other = f", or None {none}" if none else ""
        raise SettingError(f"`{name}` must be True or False{other}, got {shown(value)}")


def check_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Raise unless a value is one of `choices`."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        listed = [repr(choice) if choice is None else f'"{choice}"' for choice in choices]
        raise SettingError(f"`{name}` must be {', '.join(listed[:-1])} or {listed[-1]}, got {shown(value)}")


def check_type(name: str, value: object, kind: type[Any] | tuple[type[Any], ...], words: str) -> None:
    """Raise unless a value is an instance of `kind`; `words` completes "`name` must be …"."""
    if not isinstance(value, kind):
        raise SettingError(f"`{name}` must be {words}, got {shown(value)}")


def shown(value: object) -> str:
    """Return a value as text for a message: on one line and not too long.

    >>> shown(0.5), shown("a"), shown(10**400)
    ('0.5', "'a'", 'a whole number of 1329 bits')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and not hasattr(value, "is_integer"):  # NumPy's numbers have a shape too
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the `repr` of a user's class may raise anything
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
