"""Numbers in the text of a page, tied to stored results.

A claim is a piece of a page whose numbers are rendered from a stored file: `f"stays at {n(85.2, '.0f')} %"`. The page
itself is ordinary Markdown. `deviations` says where a page and its claims differ, `rewrite` puts the stored numbers in,
and `untied` finds the numbers of a page that no claim, no generated table and no listed exception covers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["deviations", "fill_tables", "n", "read", "rewrite", "untied"]

ROOT = Path(__file__).parents[2]
OPEN, CLOSE = "\x02", "\x03"  # around a rendered number
NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?(?:e[−-]?\d+)?"
GENERATED = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
SKIPPED = re.compile(
    r"^```.*?^```|^ {4}.*?$|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)|^#.*?$|^!\[.*?$", re.DOTALL | re.MULTILINE
)
PLACE = r"(?:[A-C]\.)?\d[\d.]*"
REFERENCE = re.compile(
    r"(?:Eqs?\.|Figures?|Tables?|Theorem|Corollary|Lemma|Algorithm|Observation|[Aa]ppendix|[Ss]ection|Python ≥|torch)"
    rf"\s+{PLACE}(?:(?:,|–|,? and|,? to)\s*{PLACE})*|PyTorch ≥ [\d.]+|[A-C]\.\d+"
    r"|95 %(?=\s+(?:\w+\s+)?(?:interval|band))"
)
SETTING = re.compile(rf"(?<![\w.])[KTWCMsmnhαβγδζητλ]²?\s*[=≥]\s*{NUMBER}(?:\s+and\s+{NUMBER})?")
UNIT = r"\s?(?:%|TB/s|GB/s|GFLOP|MFLOP|(?:ms|µs|s|seconds|minutes|MB|GB|kB|points?|times|nats|copies)\b)"
MEASURED = re.compile(
    rf"(?<![\w.^]){NUMBER}(?={UNIT})"  # 20 ms, 85 %
    r"|(?<![\w.^])[+−-]?\d[\d,]*(?:\.\d+(?:e[−-]?\d+)?|e[−-]?\d+)(?![\w.]*\w)"  # 0.84, 3e-4
    rf"|(?<![\w.]){NUMBER}(?= of (?:the )?\d)|(?<=\d of ){NUMBER}"  # 11 of 12
)
CELL = re.compile(r"(?<=\|)\s*[*(+−-]*\d[^|]*")  # a cell of a table that begins with a number


@cache
def read(name: str) -> Any:
    """Return a stored result, by its path from the root of the repository."""
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def n(value: float, form: str = "", *, minus: str = "-") -> str:
    """Return a number as a page shows it, marked as a rendered one; halves are rounded up, as readers do."""
    places = re.fullmatch(r"[+,]*\.(\d)f", form)
    exact: float | Decimal = value
    if places:
        exact = Decimal(str(value)).quantize(Decimal(1).scaleb(-int(places[1])), ROUND_HALF_UP)
    shown = re.sub(r"e-0+", "e-", format(exact, form))
    return f"{OPEN}{shown.replace('-', minus)}{CLOSE}"


def _pattern(claim: str) -> re.Pattern[str]:
    parts = re.split(f"{OPEN}.*?{CLOSE}", claim)
    literal = [r"\s+".join(re.escape(word) for word in re.split(r"\s+", part)) for part in parts]
    return re.compile(f"({NUMBER})".join(literal))


def _rendered(claim: str) -> list[str]:
    return re.findall(f"{OPEN}(.*?){CLOSE}", claim)


def _shown(claim: str) -> str:
    return re.sub(f"[{OPEN}{CLOSE}]", "", claim)


def deviations(text: str, claims: list[str]) -> list[str]:
    """Return a sentence for each claim that is not on the page exactly once with the stored numbers."""
    found = []
    for claim in claims:
        matches = list(_pattern(claim).finditer(text))
        if len(matches) != 1:
            found.append(f"found {len(matches)} times: {_shown(claim)}")
        elif list(matches[0].groups()) != _rendered(claim):
            found.append(f"the page says {list(matches[0].groups())}, the file says: {_shown(claim)}")
    return found


def rewrite(text: str, claims: list[str]) -> str:
    """Return the page with the stored numbers in it."""
    for claim in claims:
        match = _pattern(claim).search(text)
        if match:
            for place, number in reversed(list(enumerate(_rendered(claim), start=1))):
                text = text[: match.start(place)] + number + text[match.end(place) :]
    return text


def fill_tables(text: str, tables: dict[str, str]) -> str:
    """Return the page with each table between its marks, `<!-- table NAME -->` and `<!-- end -->`.

    Raises:
        ValueError: a table has no row, its marks are not on the page exactly once, or the page has marks of no table.
    """
    marked = [match.group(1) for match in GENERATED.finditer(text)]
    if sorted(marked) != sorted(tables):
        raise ValueError(f"the page has marks for the tables {sorted(marked)}, there are tables {sorted(tables)}")
    for name, table in tables.items():
        if sum(line.startswith("|") for line in table.split("\n")) < 3:
            raise ValueError(f"the table {name} has no row")
    return GENERATED.sub(lambda match: f"<!-- table {match[1]} -->\n{tables[match[1]]}\n<!-- end -->", text)


def untied(text: str, claims: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Return every number of the page that looks measured and is tied to nothing, with the text around it."""
    left = text
    for pattern in (GENERATED, SKIPPED):
        left = pattern.sub(_blank, left)
    for claim in claims:
        for match in _pattern(claim).finditer(text):
            for place in range(1, len(match.groups()) + 1):
                left = _without(left, *match.span(place))
    for fragment in allowed:
        for match in _pattern(fragment).finditer(text):
            left = _without(left, *match.span())
    for pattern in (REFERENCE, SETTING):
        left = pattern.sub(_blank, left)
    found = []
    for line in left.split("\n"):
        hits = [hit.group() for hit in MEASURED.finditer(line)]
        if line.startswith("|"):
            hits += [hit.group().strip() for hit in CELL.finditer(line)]
        found += [f"{hit} in {line.strip()[:160]}" for hit in dict.fromkeys(hits)]
    return found


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n|]", " ", match.group())


def _without(text: str, start: int, end: int) -> str:
    return text[:start] + re.sub(r"[^\n|]", " ", text[start:end]) + text[end:]
