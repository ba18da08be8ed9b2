"""JSON of strangers: what is read is a document, or it is refused; nothing is read in two ways."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["FLOAT", "float_of", "marked", "parse_json", "unmarked"]

FLOAT = "$float"
DEEPEST = 100  # levels of a document; those that pactune writes have some twenty
NOT_FINITE = ("inf", "-inf", "nan")


def parse_json(text: bytes | str) -> Any:
    """Return a JSON document.

    Raises:
        ValueError: it is no JSON, has a key twice, a number without a value (NaN, 1e999), or is nested too deeply.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(found)
    return found


def marked(value: Any) -> Any:
    """Return a document with {"$float": "inf"} for the numbers that JSON has not: infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: repr(float(value))}
    if isinstance(value, dict):
        return {key: marked(part) for key, part in value.items()}
    return [marked(part) for part in value] if isinstance(value, (list, tuple)) else value


def unmarked(value: Any) -> Any:
    """Return the document that `marked` was given.

    Raises:
        ValueError: a mark stands for no number.
    """
    if isinstance(value, dict):
        return float_of(value) if FLOAT in value else {key: unmarked(part) for key, part in value.items()}
    return [unmarked(part) for part in value] if isinstance(value, list) else value


def float_of(document: dict[str, Any]) -> float:
    """Return the number that {"$float": "inf"} stands for, which JSON has not.

    Raises:
        ValueError: it stands for none.
    """
    found = document.get(FLOAT)
    if len(document) != 1 or found not in NOT_FINITE:
        raise ValueError(f"{FLOAT} must stand for one of {', '.join(NOT_FINITE)}, got {str(document)[:80]}")
    return float(found)


def _check_depth(document: Any) -> None:
    """Raise where a document is nested so deeply that code which walks through it may end in a RecursionError."""
    level = [document]
    for _ in range(DEEPEST):
        level = [
            part
            for value in level
            if isinstance(value, (dict, list))
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large")
    return value
