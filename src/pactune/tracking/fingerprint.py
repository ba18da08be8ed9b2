"""In what two runs differ, by the words that describe them: compared before a run is resumed."""

from __future__ import annotations

from typing import Any

from pactune.tracking.parts import Parts, without_digests

__all__ = ["PARTS", "differences", "moved_parts"]

PARTS = "parts"  # of the modules, losses and settings, each with an entry of its own
DERIVED = ("memory", "outer_memory")  # from the others, for checks of what is loaded
SHOWN = 8  # differences that an error names


def differences(
    theirs: dict[str, Any], ours: dict[str, Any], *, moved: frozenset[str] = frozenset(), versions_differ: bool = False
) -> str:
    """Return in words in what two runs differ; nothing where they are the same.

    Args:
        theirs: what `describe_run` said when the run began.
        ours: what it says now.
        moved: parts that training changes, which are not compared.
        versions_differ: another version of Python or torch may have other bytecode and attributes. Then checksums are
            not compared, and only the parts that both have.
    """
    one, two = (_flat(settings, loosely=versions_differ) for settings in (theirs, ours))
    skipped = {*moved, *DERIVED}
    names = [name for name in {**one, **two} if name not in skipped and one.get(name) != two.get(name)]
    if versions_differ:
        names = [name for name in names if not name.startswith(PARTS) or (name in one and name in two)]
    words = [f"{name.removeprefix(f'{PARTS} ')} was {one.get(name)!r}, is {two.get(name)!r}" for name in names]
    more = f"; and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return "; ".join(words[:SHOWN]) + more


def moved_parts(began: Parts, now: Parts) -> list[str]:
    """Return which parts training has changed, such as a count of calls, by their names in `differences`."""
    one, two = without_digests(began), without_digests(now)
    small = {name for name, words in now.items() if words.startswith("tensor ") and "checksum" in words}
    changed = [name for name in {**one, **two} if one.get(name) != two.get(name) or name in small - _equal(began, now)]
    return [f"{PARTS} {name}" for name in changed]


def _equal(one: Parts, two: Parts) -> set[str]:
    return {name for name in one if one[name] == two.get(name)}


def _flat(settings: dict[str, Any], *, loosely: bool) -> dict[str, Any]:
    """Return the settings with an entry per part."""
    parts = settings.get(PARTS)
    if not isinstance(parts, dict):
        return settings
    found = without_digests(parts) if loosely else parts
    return {**{k: v for k, v in settings.items() if k != PARTS}, **{f"{PARTS} {k}": v for k, v in found.items()}}
