"""The sentences of docs/evidence/reproduction.md about other ways to get decays for ResNet-18 on MNIST."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from claims.text import n, read

__all__ = ["Courses", "method", "other_ways"]

CLAMPED = ("zero-clamped-0.01", "zero-clamped-0.1")
Courses = Mapping[int, Sequence[float]]  # the test accuracies of a run, by its draw


def other_ways(eq5: Courses, plain: Courses) -> list[str]:
    """Return the sentences about the other ways to get decays, after the outer steps that they have.

    Args:
        eq5: the runs of the table with Eq. 5.
        plain: plain training beside them.
    """
    runs = _runs()
    drift, folds = _by_way(runs, ("drift", "folds"))
    steps, fewer = _steps_of_all(drift), _steps_of_all(folds)
    above = sum(folds[draw][fewer - 1] > eq5[draw][fewer - 1] for draw in folds)
    return [
        f"After {n(steps)} outer steps `HyperDrift` has {_mean_at(drift, steps)} %, where Eq. 5 has "
        f"{_mean_at(eq5, steps)} %; on no draw do they differ by more than {_most_apart(drift, eq5, steps)} points.",
        f"After {n(fewer)} steps a model of all images beside them has {_mean_at(folds, fewer)} %, where Eq. 5 has "
        f"{_mean_at(eq5, fewer)} %; it is better on {n(above)} of {n(len(folds))} draws",
        *_one_decay(runs, eq5, folds),
        *_outer_rates(runs, eq5),
        *_clamped(runs, eq5, plain),
    ]


def method(eq5: Courses) -> list[str]:
    """Return what docs/evidence/method.md says about `HyperDrift` and λ ≥ 0 on ResNet-18."""
    drift, *clamped = _by_way(_runs(), ("drift", *CLAMPED))
    last, steps = _steps_of_all(drift), _steps_of_all(*clamped)
    ends = [_mean_at(own, steps) for own in (*clamped, eq5)]
    return [
        f"after {n(last)} outer steps `HyperDrift` has {_mean_at(drift, last)} % and Eq. 5 {_mean_at(eq5, last)} %, "
        f"and on no draw do they differ by more than {_most_apart(drift, eq5, last)} points",
        f"after {n(steps)} outer steps λ ≥ 0 at ζ = 0 has {ends[0]} % at the paper's outer rate and {ends[1]} % at "
        f"{n(0.1)}, where Eq. 5 has {ends[2]} %",
    ]


def _runs() -> list[Any]:
    found: list[Any] = read("results/weight-decay/ways-resnet18-mnist.json")["runs"]
    return found


def _by_way(runs: list[Any], ways: Sequence[str]) -> list[Courses]:
    return [{r["draw"]: r["test_accuracy"] for r in runs if r["way"] == way} for way in ways]


def _clamped(runs: list[Any], eq5: Courses, plain: Courses) -> list[str]:
    """Return the sentence about λ ≥ 0 without a regularizer, at the last step that all runs have."""
    courses = _by_way(runs, CLAMPED)
    steps = _steps_of_all(*courses)
    means = [_means_by_step(own, steps) for own in (*courses, eq5, plain)]
    ends = [n(100 * mean[-1], ".1f") for mean in means]
    tops = [f"{n(100 * max(mean), '.1f')} % after step {n(mean.index(max(mean)) + 1)}" for mean in means[:2]]
    wins = [sum(eq5[draw][steps - 1] > own[draw][steps - 1] for draw in own) for own in courses]
    return [
        f"After {n(steps)} outer steps they have {ends[0]} % at the paper's outer rate and {ends[1]} % at {n(0.1)}, "
        f"where Eq. 5 has {ends[2]} % and plain training {ends[3]} %. Eq. 5 is better on {n(wins[0])} of "
        f"{n(len(eq5))} draws and on {n(wins[1])} of {n(len(eq5))}. The means are best early: {tops[0]} and {tops[1]}."
    ]


def _outer_rates(runs: list[Any], eq5: Courses) -> list[str]:
    """Return the sentence about larger outer learning rates, at the last step that all runs have."""
    fast = _by_way(runs, ("eq5-0.1", "eq5-0.3"))
    steps = _steps_of_all(*fast)
    assert all(courses[draw][steps - 1] < eq5[draw][steps - 1] for courses in fast for draw in courses)
    means = [_means_by_step(courses, steps) for courses in (*fast, eq5)]
    ends = [n(100 * mean[-1], ".1f") for mean in means]
    peaks = [max(range(steps), key=mean.__getitem__) for mean in means[:2]]
    pairs = zip(means[:2], peaks, strict=True)
    tops = [f"{n(100 * mean[peak], '.1f')} % after step {n(peak + 1)}" for mean, peak in pairs]
    return [
        f"with {n(0.1)} and {n(0.3)} Eq. 5 has {ends[0]} and {ends[1]} % after {n(steps)} outer steps, less than with "
        f"{n(1e-2, '.0e')} ({ends[2]} %) on {n(len(eq5))} of {n(len(eq5))} draws each. The means are best "
        f"early: {tops[0]} and {tops[1]}."
    ]


def _steps_of_all(*ways: Courses) -> int:
    """Return how many outer steps all runs of some ways have."""
    return min(len(course) for courses in ways for course in courses.values())


def _mean_at(courses: Courses, steps: int) -> str:
    return n(100 * _means_by_step(courses, steps)[-1], ".1f")


def _most_apart(one: Courses, other: Courses, steps: int) -> str:
    """Return the largest difference on a draw, in points."""
    return n(100 * max(abs(one[draw][steps - 1] - other[draw][steps - 1]) for draw in one), ".1f")


def _means_by_step(courses: Courses, steps: int) -> list[float]:
    return [statistics.mean(course[t] for course in courses.values()) for t in range(steps)]


def _one_decay(runs: list[Any], eq5: Courses, folds: Courses) -> list[str]:
    """Return the sentences about one decay for all parameters, which is not tuned."""
    best = 3.0  # the table has the others

    def courses(way: str, decay: float) -> Courses:
        return {run["draw"]: run["test_accuracy"] for run in runs if run["way"] == way and run.get("decay") == decay}

    def mean(way: str, decay: float) -> float:
        return 100 * statistics.mean(course[-1] for course in courses(way, decay).values())

    half, whole = courses("one-half", best), courses("one-all", best)
    above_eq5 = sum(course[-1] > eq5[draw][-1] for draw, course in half.items())
    above_folds = sum(course[-1] > folds[draw][-1] for draw, course in whole.items())
    decays = {run["decay"] for run in runs if run["way"] == "one-all"}
    assert max(decays, key=lambda decay: mean("one-all", decay)) == best
    steps = _steps_of_all(half, whole)
    return [
        f"λ = {n(best, '.0f')} on the 50 training images has {n(mean('one-half', best), '.1f')} % after {n(steps)} "
        f"outer steps, more than Eq. 5 after all of them on {n(above_eq5)} of {n(len(half))} draws, and on all 100 "
        f"images {n(mean('one-all', best), '.1f')} %, more than the folds on {n(above_folds)} of {n(len(whole))} draws",
        f"without any decay 100 images give {n(mean('one-all', 0.0), '.1f')} %",
    ]
