"""Write the tables of docs/evidence/reproduction.md: `python docs/make_reproduction.py`.

They come from results/weight-decay/*.json.
`python docs/make_numbers.py` does this for all pages. A test fails when a page is out of date.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claims.text import fill_tables
from decay_ways_table import front_door_draws, read_ways, ways_section

from pactune.paper.weight_decay.method_tables import gains_table, markdown, methods_table, ordered
from pactune.paper.weight_decay.records import StudyRecord, read_studies
from pactune.paper.weight_decay.sections import study_section

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "reproduction.md"
RESULTS = ROOT / "results" / "weight-decay"
OTHERS = ("scan", "correlation", "truncation", "restart")
NOTHING = "No results are committed yet."


def tables(studies: list[StudyRecord], ways: Sequence[dict[str, Any]] = ()) -> dict[str, str]:
    """Return every generated part of the page by its name; `ways` are the files of benchmarks/ways_gpu.py."""
    compared = ordered(studies)
    others = [study for item in OTHERS for study in studies if study.item == item]
    return {
        "methods": markdown(methods_table(compared)) if compared else NOTHING,
        "gains": markdown(gains_table(compared)) if compared else NOTHING,
        "others": "\n\n".join([*map(_part, others), *(ways_section(one, front_door_draws(one)) for one in ways)])
        or NOTHING,
    }


def page() -> str:
    """Return the page with its tables as the results say."""
    return fill_tables(PAGE.read_text(encoding="utf-8"), tables(read_studies(RESULTS), read_ways(RESULTS)))


def _part(study: StudyRecord) -> str:
    section = study_section(study)
    missing = [words for words in section.paragraphs if "not finished" in words]
    return "\n\n".join([f"### {section.heading}", *missing, *map(markdown, section.tables)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
