"""Checks of the content of files, composed from small checks, and the rules for the lines of a journal.

A check is a function of a value and of its name in messages. It raises a `SchemaError` if the value breaks the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pactune.columns import JOURNAL_COLUMNS

__all__ = [
    "Check",
    "SchemaError",
    "anything",
    "check_line",
    "check_row",
    "count",
    "finite",
    "flag",
    "is_number",
    "listed",
    "mapping",
    "named",
    "need",
    "number",
    "optional",
    "record",
    "text",
]

Check = Callable[[Any, str], None]
LARGEST = 2**53  # the largest whole number that a float holds exactly


class SchemaError(ValueError):
    """The content of a file is not as pactune writes it."""


def need(fits: bool, where: str, rule: str, value: object) -> None:
    """Raise unless `fits`; the message names the field, the rule and the value."""
    if not fits:
        raise SchemaError(f"{where} must be {rule}, got {str(value)[:60]!r}")


def text(value: Any, where: str) -> None:
    """Check that a value is a text."""
    need(isinstance(value, str), where, "a text", value)


def is_number(value: object) -> bool:
    """Return True if a value is a number that a float can hold; infinity and NaN are numbers too."""
    return isinstance(value, float) or (type(value) is int and abs(value) <= LARGEST)


def number(value: Any, where: str) -> None:
    """Check that a value is a number; it may be infinite or NaN."""
    need(is_number(value), where, "a number", value)


def finite(value: Any, where: str) -> None:
    """Check that a value is a finite number."""
    number(value, where)
    need(math.isfinite(value), where, "a finite number", value)


def count(value: Any, where: str) -> None:
    """Check that a value is a whole number ≥ 0."""
    need(type(value) is int and 0 <= value <= LARGEST, where, "a whole number ≥ 0", value)


def flag(value: Any, where: str) -> None:
    """Check that a value is True or False."""
    need(isinstance(value, bool), where, "true or false", value)


def mapping(value: Any, where: str) -> None:
    """Check that a value is a dict whose keys are texts."""
    need(isinstance(value, dict) and all(isinstance(key, str) for key in value), where, "a dict by name", value)


def anything(value: Any, where: str) -> None:
    """Accept any value."""


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""

    def checked(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return checked


def listed(check: Check) -> Check:
    """Return a check of a list whose elements pass `check`."""

    def checked(value: Any, where: str) -> None:
        need(isinstance(value, list), where, "a list", value)
        for i, part in enumerate(value):
            check(part, f"{where}[{i}]")

    return checked


def named(check: Check) -> Check:
    """Return a check of a dict whose values pass `check`."""

    def checked(value: Any, where: str) -> None:
        mapping(value, where)
        for key, part in value.items():
            check(part, f"{where}.{key}")

    return checked


def record(required: dict[str, Check], possible: dict[str, Check] | None = None) -> Check:
    """Return a check of a dict with these required and possible fields; unknown fields are not checked."""

    def checked(value: Any, where: str) -> None:
        mapping(value, where)
        missing = [name for name in required if name not in value]
        if missing:
            raise SchemaError(f"{where} lacks {', '.join(missing)}")
        for name, check in {**required, **(possible or {})}.items():
            if name in value:
                check(value[name], f"{where}.{name}")

    return checked


_VERSIONS = named(text)
_ENDING: dict[str, Check] = {"kept_run": text, "kept_step": count, "verdict": text, "error": text}
_ENDING |= {"zeta": optional(number), "kept_zeta": optional(number), "pays": optional(flag)}
_LINES: dict[str, Check] = {
    "start": record({}, {"settings": mapping, "versions": _VERSIONS, "name": text}),
    "resume": record({"outer_steps_done": count}, {"versions": _VERSIONS}),
    "end": record({"status": text}, {**_ENDING, "outer_steps_done": count}),
    "cell": record({"status": text}, {**_ENDING, "build": text, "values": mapping, "warnings": listed(text)}),
}


def check_line(line: dict[str, Any]) -> None:
    """Check a line of a journal; a line of an unknown kind has no rule.

    Raises:
        SchemaError: a field breaks its rule.
    """
    kind = line["kind"]
    text(line.get("time", ""), "time")
    if kind in ("row", "plain row"):
        check_row({key: value for key, value in line.items() if key not in JOURNAL_COLUMNS}, kind)
    else:
        _LINES.get(kind, anything)(line, kind)


def check_row(value: Any, where: str) -> None:
    """Check a row of a history: numbers by the names of columns."""
    named(number)(value, where)
    step = value.get("outer_step")
    need(type(step) is int and step >= 1, f"{where}.outer_step", "a whole number ≥ 1", step)
