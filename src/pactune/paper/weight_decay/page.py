"""The part of a report about weight-decay studies: the comparison of the methods, then a section per study."""

from __future__ import annotations

from collections.abc import Sequence

from pactune.paper.weight_decay.method_tables import gains_table, methods_table, ordered
from pactune.paper.weight_decay.records import StudyRecord
from pactune.paper.weight_decay.sections import SECTION_PARTS, study_section
from pactune.report.page import Section

__all__ = ["study_sections"]

WORDS = (
    "Test accuracies in per cent with bootstrap 95 % intervals over draws of the images and initial weights. "
    "The paper used one draw of 50 + 50 images and its intervals are over initial weights only; other draws differ by "
    "several points, so compare methods within a row.",
    "Plain training keeps λ at 0. Least norm is the paper's baseline: among the outer steps of maximal validation "
    'accuracy at ζ = 0, that of least ‖θ‖. ζ = "auto" chooses ζ and the step by cross-validation, without test data. '
    "The oracle step is the best one by test accuracy: no user could choose it.",
    "Gains are paired: the same images, the same initial weights. Behind each stands on how many it is positive.",
)


def study_sections(studies: Sequence[StudyRecord]) -> list[Section]:
    """Return the sections of weight-decay studies, the comparison of the methods first."""
    shown = [study for study in studies if study.item in SECTION_PARTS and study.records]
    shown.sort(key=lambda study: (list(SECTION_PARTS).index(study.item), study.name))
    return [*_overview(shown), *map(study_section, shown)]


def _overview(studies: Sequence[StudyRecord]) -> list[Section]:
    """Return the section with the paper's table, if a study compares the methods."""
    compared = ordered(studies)
    if not compared:
        return []
    return [Section("Methods compared (Table C.1)", WORDS, [methods_table(compared), gains_table(compared)])]
