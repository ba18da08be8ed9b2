"""Checks of what stands in files, put together from small ones; and the rules for the lines of a journal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = [
    "Check",
    "UnfitError",
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
LARGEST = 2**53  # of whole numbers, which a float can still hold


class UnfitError(ValueError):
    """Something that pactune would not have written."""


def need(fits: bool, where: str, rule: str, value: object) -> None:
    """Raise where something does not fit."""
    if not fits:
        raise UnfitError(f"{where} must be {rule}, got {str(value)[:60]!r}")


def text(value: Any, where: str) -> None:
    """Take a text."""
    need(isinstance(value, str), where, "a text", value)


def is_number(value: object) -> bool:
    """Tell whether something is a number that a float can hold, infinity and NaN included."""
    return isinstance(value, float) or (type(value) is int and abs(value) <= LARGEST)


def number(value: Any, where: str) -> None:
    """Take a number; it may be infinite or NaN."""
    need(is_number(value), where, "a number", value)


def finite(value: Any, where: str) -> None:
    """Take a finite number."""
    number(value, where)
    need(math.isfinite(value), where, "a finite number", value)


def count(value: Any, where: str) -> None:
    """Take a whole number ≥ 0."""
    need(type(value) is int and 0 <= value <= LARGEST, where, "a whole number ≥ 0", value)


def flag(value: Any, where: str) -> None:
    """Take true or false."""
    need(isinstance(value, bool), where, "true or false", value)


def mapping(value: Any, where: str) -> None:
    """Take a dict whose keys are texts."""
    need(isinstance(value, dict) and all(isinstance(key, str) for key in value), where, "a dict by name", value)


def anything(value: Any, where: str) -> None:
    """Take whatever is there."""


def optional(check: Check) -> Check:
    """Take None too."""

    def checked(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return checked


def listed(check: Check) -> Check:
    """Take a list of such."""

    def checked(value: Any, where: str) -> None:
        need(isinstance(value, list), where, "a list", value)
        for i, part in enumerate(value):
            check(part, f"{where}[{i}]")

    return checked


def named(check: Check) -> Check:
    """Take a dict of such."""

    def checked(value: Any, where: str) -> None:
        mapping(value, where)
        for key, part in value.items():
            check(part, f"{where}.{key}")

    return checked


def record(required: dict[str, Check], possible: dict[str, Check] | None = None) -> Check:
    """Take a dict with these fields; others are nobody's and are left alone."""

    def checked(value: Any, where: str) -> None:
        mapping(value, where)
        missing = [name for name in required if name not in value]
        if missing:
            raise UnfitError(f"{where} lacks {', '.join(missing)}")
        for name, check in {**required, **(possible or {})}.items():
            if name in value:
                check(value[name], f"{where}.{name}")

    return checked


_VERSIONS = named(text)
_ENDING: dict[str, Check] = {"kept_run": text, "kept_step": count, "verdict": text, "error": text}
_ENDING |= {"zeta": optional(number), "kept_zeta": optional(number)}
_LINES: dict[str, Check] = {
    "start": record({}, {"settings": mapping, "versions": _VERSIONS, "name": text}),
    "resume": record({"outer_steps_done": count}, {"versions": _VERSIONS}),
    "end": record({"status": text}, _ENDING),
    "cell": record({"status": text}, {**_ENDING, "build": text, "values": mapping, "warnings": listed(text)}),
}


def check_line(line: dict[str, Any]) -> None:
    """Check a line of a journal; kinds that are not known here have no rule.

    Raises:
        UnfitError: names the field and the rule.
    """
    kind = line["kind"]
    text(line.get("time", ""), "time")
    if kind in ("row", "plain row"):
        check_row({key: value for key, value in line.items() if key not in ("kind", "time")}, kind)
    else:
        _LINES.get(kind, anything)(line, kind)


def check_row(value: Any, where: str) -> None:
    """Take a row of a history: numbers by name."""
    named(number)(value, where)
    step = value.get("outer_step")
    need(type(step) is int and step >= 1, f"{where}.outer_step", "a whole number ≥ 1", step)
