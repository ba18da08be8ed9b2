"""Write the tables of docs/evidence/certificates.md: `python docs/make_certificates.py`.

They come from results/certificate/*.json.

`python docs/make_numbers.py` does this for all pages. A test fails when a page is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claims.text import fill_tables

from pactune.paper.certificates.page import HEADER, table_rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "certificates.md"
RESULTS = ROOT / "results" / "certificate"


def markdown(header: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables() -> dict[str, str]:
    """Return every table of the page by its name."""
    coverage = _read("coverage.json")
    found = {name: markdown(HEADER, table_rows(_studies(name))) for name in ("digits", "mnist")}
    cover = [[r["name"], f"{r['delta']:g}", f"{r['violations']} of {r['repetitions']}"] for r in coverage["coverage"]]
    return found | {"coverage": markdown(("certificate", "δ", "violations"), cover)}


def page() -> str:
    """Return the page with its tables as the results say."""
    return fill_tables(PAGE.read_text(encoding="utf-8"), tables())


def _studies(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(RESULTS.glob(f"{name}*.json")):
        found |= json.loads(path.read_text(encoding="utf-8")).get("studies", {})
    return found


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
