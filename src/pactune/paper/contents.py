"""The studies of the paper under a folder, as `pactune report` shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pactune.paper.certificates.page import certificate_sections
from pactune.paper.freedman.figures import freedman_sections
from pactune.paper.weight_decay.page import study_sections
from pactune.paper.weight_decay.records import CELLS, StudyRecord, read_studies
from pactune.paper.weight_decay.rules import summarise
from pactune.report.folder import Contents, folders_under, study_name
from pactune.report.page import Section
from pactune.storage.documents import parse_json
from pactune.storage.files import has_content, read_plain
from pactune.tracking.journal import read_lines, starts_of

__all__ = ["study_contents"]

RESULTS = "results.json"
# Studies whose figures come from their results, by the name of their command.
READERS: dict[str, Callable[[dict[str, Any], str], list[Section]]] = {
    "freedman": freedman_sections,
    "freedman-null": freedman_sections,
    "certificate": lambda results, _: certificate_sections(results["studies"]),
}


def study_contents(home: Path) -> Contents:
    """Return the studies of the paper under a folder.

    Raises:
        SettingError: there is no such folder.
        DataError: a study does not fit the schema.
        RunFolderError: a journal or an exported file is not a plain file.
    """
    studies = read_studies(home)
    found = Contents([_summary(study) for study in studies], study_sections(studies), set(), [])
    for folder in folders_under(home):
        lines = read_lines(folder)
        name = study_name(lines)
        if any("groups" in line["settings"] for line in starts_of(lines)):
            found.claimed.update({folder, folder.parent / CELLS})
        elif name in READERS and has_content(folder / RESULTS):
            _add_results(found, folder, name)
    return found


def _summary(study: StudyRecord) -> list[str]:
    """Return the row of a study: the accuracies of plain training and of Eq. 5, if it compares the methods."""
    row = [study.name, f"study: {study.item}", f"{study.finished} of {study.asked} runs finished", ""]
    if study.item not in ("table", "weight-decay") or not study.records:
        return [*row, "", "", "", ""]
    found = summarise(study)
    intervals = [found.interval(method) for method in ("plain", "regularized")]
    numbers = ["" if one is None else f"{100 * one['mean']:.1f} %" for one in intervals]
    return [*row, "test accuracy, mean", numbers[0], f"{numbers[1]} (Eq. 5)" if numbers[1] else "", ""]


def _add_results(found: Contents, folder: Path, name: str) -> None:
    """Add a study from its results. A stranger's file may hold anything, so an error is only named."""
    try:
        sections = READERS[name](parse_json(read_plain(folder / RESULTS)), folder.name)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        found.unreadable.append(f"{folder / RESULTS} is not as pactune writes it: {type(error).__name__}: {error}.")
        return
    found.summary.append([folder.name, f"study: {name}", "done", "", "", "", "", ""])
    found.sections.extend(sections)
    found.claimed.add(folder)
