"""Stored studies of the paper's experiments, and what the claims about them have in common."""

from __future__ import annotations

import statistics
from functools import cache

from claims.text import ROOT, n
from pactune.paper.weight_decay.records import RunRecord, StudyRecord, read_studies
from pactune.paper.weight_decay.rules import Comparison, Summary, compare, summarise

__all__ = ["compared", "mean", "runs_at", "spearman", "studies", "summary", "wins"]


@cache
def studies() -> dict[str, StudyRecord]:
    """Return the studies of results/weight-decay by name."""
    return {study.name: study for study in read_studies(ROOT / "results" / "weight-decay")}


@cache
def summary(name: str) -> Summary:
    """Return the accuracies of a study by method, draw and start."""
    return summarise(studies()[name])


def runs_at(name: str, zeta: float) -> list[RunRecord]:
    """Return the runs of a study at one ζ."""
    return studies()[name].where(zeta=zeta)


def mean(name: str, method: str) -> str:
    """Return the mean test accuracy of a method in per cent."""
    interval = summary(name).interval(method)
    assert interval is not None
    return n(100 * interval["mean"], ".1f")


def compared(name: str, own: str, other: str) -> Comparison:
    """Return the paired difference of two methods."""
    found = compare(summary(name), own, other)
    assert found is not None
    return found


def wins(name: str, own: str, other: str) -> str:
    """Return on how many draws one method is above another."""
    found = compared(name, own, other)
    return f"{n(found.wins)} of {n(found.of)}"


def spearman(runs: list[RunRecord], errors: list[float]) -> float:
    """Return the rank correlation of the runs' regularizers and their generalisation errors."""
    totals = [sum(value**2 for value in run.column("regularizer")) for run in runs]
    ranks = [{value: place for place, value in enumerate(sorted(values))} for values in (totals, errors)]
    pairs = [(ranks[0][total], ranks[1][error]) for total, error in zip(totals, errors, strict=True)]
    return statistics.correlation([a for a, _ in pairs], [b for _, b in pairs])
