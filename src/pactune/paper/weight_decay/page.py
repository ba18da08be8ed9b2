"""One page for a whole folder of studies and runs, from their journals alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pactune import __version__
from pactune.errors import DataError
from pactune.paper.weight_decay.method_tables import gains_table, methods_table, ordered
from pactune.paper.weight_decay.records import StudyRecord, read_studies
from pactune.paper.weight_decay.sections import MAKERS, study_section
from pactune.report.page import Section, write_page
from pactune.report.runs import run_sections

__all__ = ["overview", "write_report"]

WORDS = (
    "Test accuracies in per cent with bootstrap 95 % intervals over draws of the images and initial weights. "
    "The paper used one draw of 50 + 50 images and its intervals are over initial weights only; other draws differ by "
    "several points, so compare methods within a row.",
    "Plain training keeps λ at 0. Least norm is the paper's baseline: among the outer steps of maximal validation "
    'accuracy at ζ = 0, that of least ‖θ‖. ζ = "auto" chooses ζ and the step by cross-validation, without test data. '
    "The oracle step is the best one by test accuracy: no user could choose it.",
    "Gains are paired: the same images, the same initial weights. Behind each stands on how many it is positive.",
)


def overview(studies: Sequence[StudyRecord]) -> list[Section]:
    """Return the section with the paper's table, where a study compares the methods."""
    compared = ordered(studies)
    if not compared:
        return []
    return [Section("Methods compared (Table C.1)", WORDS, [methods_table(compared), gains_table(compared)])]


def write_report(home: Path, output: Path | None = None) -> Path:
    """Write one self-contained page of everything in a folder: run folders, or JSON exported from them.

    Args:
        home: the folder.
        output: the page; `report.html` in the folder by default.

    Returns:
        The page.

    Raises:
        DataError: there is nothing to show.
    """
    studies = [study for study in read_studies(home) if study.item in MAKERS and study.records]
    studies.sort(key=lambda study: (list(MAKERS).index(study.item), study.name))
    sections = [*overview(studies), *map(study_section, studies), *run_sections(home)]
    if not sections:
        raise DataError(f"{home} holds no journal of a study or of a run, and no exported JSON; nothing to report on")
    return write_page(output or home / "report.html", f"pactune report: {home.resolve().name}", sections, _footer())


def _footer() -> str:
    return f"pactune {__version__}; every number is read from the journals"
