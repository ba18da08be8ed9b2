"""The identity of a run: its settings and the parts of its modules as text. A run is resumed only if they are equal."""

from __future__ import annotations

from typing import Any

from pactune.tracking.parts import Parts, without_digests

__all__ = ["PARTS", "changed_parts", "differences"]

PARTS = "parts"  # the key of the modules, losses and settings, with one entry per part
DERIVED = ("memory", "outer_memory")  # they follow from the other settings and serve to check a loaded state
SHOWN = 8  # differences that an error names


def differences(
    began: dict[str, Any], now: dict[str, Any], *, ignored: frozenset[str] = frozenset(), versions_differ: bool = False
) -> str:
    """Return in words how two runs differ; an empty text if they are the same.

    Args:
        began: the settings of `describe_run` when the run began.
        now: its settings now.
        ignored: parts that training changes; they are not compared.
        versions_differ: True if the versions of Python or torch differ. Bytecode and attributes may differ then, so
            checksums are not compared, nor parts that only one of the runs has.
    """
    one, two = (_flat(settings, digests=not versions_differ) for settings in (began, now))
    skipped = {*ignored, *DERIVED}
    names = [name for name in {**one, **two} if name not in skipped and one.get(name) != two.get(name)]
    if versions_differ:
        names = [name for name in names if not name.startswith(PARTS) or (name in one and name in two)]
    words = [f"{name.removeprefix(f'{PARTS} ')} was {one.get(name)!r}, is {two.get(name)!r}" for name in names]
    more = f"; and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return "; ".join(words[:SHOWN]) + more


def changed_parts(began: Parts, now: Parts) -> list[str]:
    """Return the names (as in `differences`) of the parts that training has changed, such as a count of calls."""
    one, two = without_digests(began), without_digests(now)
    small = {name for name, words in now.items() if words.startswith("tensor ") and "checksum" in words}
    changed = [name for name in {**one, **two} if one.get(name) != two.get(name) or name in small - _equal(began, now)]
    return [f"{PARTS} {name}" for name in changed]


def _equal(one: Parts, two: Parts) -> set[str]:
    return {name for name in one if one[name] == two.get(name)}


def _flat(settings: dict[str, Any], *, digests: bool) -> dict[str, Any]:
    """Return the settings with one entry per part."""
    parts = settings.get(PARTS)
    if not isinstance(parts, dict):
        return settings
    found = parts if digests else without_digests(parts)
    return {**{k: v for k, v in settings.items() if k != PARTS}, **{f"{PARTS} {k}": v for k, v in found.items()}}
