"""Read JSON from untrusted files: duplicate keys, NaN and deep nesting are refused."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["FLOAT", "decode_float", "decode_floats", "encode_floats", "parse_json"]

FLOAT = "$float"
DEEPEST = 100  # allowed levels of a document; pactune writes about twenty
NOT_FINITE = ("inf", "-inf", "nan")


def parse_json(text: bytes | str) -> Any:
    """Return a JSON document.

    Raises:
        ValueError: the text is no JSON, has a key twice, a number that is not finite (NaN, 1e999), or is nested too
            deeply.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(found)
    return found


def encode_floats(value: Any) -> Any:
    """Return a document with {"$float": "inf"} in place of infinity and NaN, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: repr(float(value))}
    if isinstance(value, dict):
        return {key: encode_floats(part) for key, part in value.items()}
    return [encode_floats(part) for part in value] if isinstance(value, (list, tuple)) else value


def decode_floats(value: Any) -> Any:
    """Return the original document of `encode_floats`.

    Raises:
        ValueError: a {"$float": …} has no valid number.
    """
    if isinstance(value, dict):
        return decode_float(value) if FLOAT in value else {key: decode_floats(part) for key, part in value.items()}
    return [decode_floats(part) for part in value] if isinstance(value, list) else value


def decode_float(document: dict[str, Any]) -> float:
    """Return the number of one {"$float": "inf"}.

    Raises:
        ValueError: the object has no valid number.
    """
    found = document.get(FLOAT)
    if len(document) != 1 or found not in NOT_FINITE:
        raise ValueError(f"{FLOAT} must stand for one of {', '.join(NOT_FINITE)}, got {str(document)[:80]}")
    return float(found)


def _check_depth(document: Any) -> None:
    """Raise if a document is nested so deeply that a recursive function may end in a RecursionError."""
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
