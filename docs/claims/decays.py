"""The numbers in the prose of docs/evidence/decays.md and of a section of the method's page.

`docs/make_decays.py` writes the tables. Most of the prose is about MNIST.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from claims.text import ROOT, n, read
from pactune.paper.weight_decay.setting import paper_zeta

__all__ = [
    "ALLOWED",
    "DECAYS",
    "METHOD_ALLOWED",
    "TUNE",
    "ZETAS",
    "Courses",
    "Spread",
    "claims",
    "data_sets",
    "gap",
    "method",
    "paper_strength",
    "runs",
]

DECAYS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
ZETAS = (1e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3)
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
# 97.5 % points of Student's distribution, by the number of draws
STUDENT = {5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 12: 2.201}
PLAIN = "one decay, half"
PLAIN_ALL = "one decay, all"
CLAMPED = "zero, clamped, 0.01"
ANY = "zero, any, 0.01"
TUNE = "tune"
ALLOWED = [
    "Adam 1e-4",
    "RMSprop 1e-2",
    "starts at 0.001",
    "From 0.1, 0.3, 1 and 3",
    "For ζ from 1e-5 on",
    "for ζ from 3e-5 on",
    '"12 of 12" is the number of draws',
]
METHOD_ALLOWED = ["For ζ from 1e-5 on", "from 3e-5 on"]

Courses = dict[int, list[float]]  # the test accuracy after every outer step, by draw


class Spread(NamedTuple):
    """A mean over draws with half the width of its 95 % interval, and on how many draws the number is positive."""

    mean: float
    half: float
    positive: int
    draws: int


def data_sets() -> dict[str, str]:
    """Return the names of the data sets that have a stored file."""
    return {data: name for data, name in NAMES.items() if (ROOT / _file(data)).exists()}


def paper_strength(data: str) -> float:
    """Return the paper's ζ for a linear classifier."""
    return paper_zeta("linear", data)


def runs(data: str, way: str, zeta: float = 0.0, decay: float = 0.0) -> Courses:
    """Return the runs of a way at a ζ and a start of λ; empty if they were not made."""
    found = read(_file(data))["ways"].get(way, {"runs": []})["runs"]
    return {run["draw"]: run["test_accuracy"] for run in found if (run["zeta"], run["decay"]) == (zeta, decay)}


def gap(own: Courses, other: Courses | None = None) -> Spread:
    """Return the accuracy at the last step, or the paired difference of two."""
    assert other is None or own.keys() == other.keys()
    values = [course[-1] - (other[draw][-1] if other else 0.0) for draw, course in own.items()]
    half = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return Spread(statistics.mean(values), half, sum(value > 0 for value in values), len(values))


def _file(data: str) -> str:
    return f"benchmarks/results/decay_ways_{data}.json"


def _mean(way: str, zeta: float = 0.0, decay: float = 0.0, data: str = "mnist") -> str:
    return n(gap(runs(data, way, zeta, decay)).mean, ".1f")


def _points(found: Spread, sign: int = 1) -> str:
    return f"{n(sign * found.mean, '.1f')} ± {n(found.half, '.1f')} points"


def _wins(found: Spread) -> str:
    return f"{n(found.positive)} of {n(found.draws)} draws"


def _best(courses: Courses) -> tuple[float, int]:
    """Return the largest mean test accuracy over the outer steps, and its step."""
    means = [statistics.mean(values) for values in zip(*courses.values(), strict=True)]
    step = max(range(len(means)), key=means.__getitem__)
    return means[step], step + 1


def claims() -> list[str]:
    """Return what docs/evidence/decays.md says."""
    return [*_summary(), *_cifar(), *_signs(), *_all_images()]


def _summary() -> list[str]:
    zeta = paper_strength("mnist")
    own = gap(runs("mnist", CLAMPED), runs("mnist", "eq5", zeta))
    small = gap(runs("mnist", "eq5", zeta), runs("mnist", "drift", zeta))
    low, high, all_wins = _large()
    one, other = runs("mnist", PLAIN_ALL, decay=1.0), runs("mnist", "folds, zero, clamped")
    best = gap(one, other)
    assert best.mean - best.half > 0
    fast = gap(runs("mnist", "zero, clamped, 0.3"), runs("mnist", "eq5, 0.3", zeta))
    front = gap(runs("mnist", TUNE), one)
    assert front.mean - front.half > 0
    means = {other: gap(runs("mnist", "eq5", other)).mean for other in ZETAS}
    assert len(means) == 9
    assert max(means, key=means.__getitem__) == zeta
    assert gap(runs("mnist", PLAIN_ALL, decay=0.3)).mean > gap(other).mean
    return [
        f"ζ = 0 ends at {_mean(ANY)} % with λ of any sign, and at {_mean(CLAMPED)} % with λ ≥ 0. Plain training on the "
        f"same 50 images has {_mean(PLAIN)} %.",
        f"λ ≥ 0 at ζ = 0 is {_points(own)} above Eq. 5 at the paper's ζ, and better on {_wins(own)}.",
        f"At an outer rate of {n(0.3)} the lead is {_points(fast)}, on {_wins(fast)}.",
        f"At the paper's ζ Eq. 5 is better by {_points(small)}. For ζ from 1e-5 on Eq. 5 is {low} to {high} points "
        f"better, on {all_wins} at each ζ.",
        f"λ = 1 on all 100 images ends at {_mean(PLAIN_ALL, decay=1.0)} %. The best way to tune a decay per weight, "
        f"five folds with λ ≥ 0, ends at {_mean('folds, zero, clamped')} %, {_points(best)} lower.",
        f"but λ = 0.3, with {_mean(PLAIN_ALL, decay=0.3)} %, is above those ways in the mean as well",
        f"from the same 100 images it reaches {_mean(TUNE)} %, {_points(front)} above the best single decay, on "
        f"{_wins(front)}",
    ]


def _cifar() -> list[str]:
    """Return what the page says about CIFAR-10."""
    data, zeta = "cifar10", paper_strength("cifar10")
    eq5, plain, clamped = runs(data, "eq5", zeta), runs(data, PLAIN), runs(data, CLAMPED)
    below, fast = gap(eq5, clamped), gap(eq5, runs(data, "zero, clamped, 0.3"))
    assert below.positive == below.draws
    assert fast.mean - fast.half < 0 < fast.mean
    gain, small = gap(eq5, plain), gap(eq5, runs(data, "drift", zeta))
    assert abs(small.mean) < small.half
    low, high, wins = _large(data, 6)
    decay = max(DECAYS, key=lambda decay: gap(runs(data, PLAIN_ALL, decay=decay)).mean)
    best = runs(data, PLAIN_ALL, decay=decay)
    folds = [gap(best, runs(data, f"folds, {kind}, any", own)) for kind in ("eq5", "drift") for own in (zeta, 1e-5)]
    least = min(folds, key=lambda spread: spread.mean)
    half = gap(runs(data, PLAIN, decay=decay), eq5)
    front = gap(runs(data, TUNE), runs(data, PLAIN_ALL, decay=decay))
    kept = [run["kept"] for run in read(_file(data))["ways"][TUNE]["runs"]]
    return [
        f"ζ = 0 ends at {_mean(ANY, data=data)} % with λ of any sign, at {_mean(CLAMPED, data=data)} % with λ ≥ 0, and "
        f"Eq. 5 at the paper's ζ at {_mean('eq5', zeta, data=data)} %, {_points(below)} above λ ≥ 0 and better on "
        f"{_wins(below)}. Plain training on the 50 images has {_mean(PLAIN, data=data)} %, {_points(gain)} less than "
        "Eq. 5.",
        f"At an outer rate of {n(0.3)} λ ≥ 0 ends at {_mean('zero, clamped, 0.3', data=data)} %, {_points(fast)} below "
        "Eq. 5 at the paper's rate.",
        f"At the paper's ζ they differ by {n(abs(small.mean), '.1f')} ± {n(small.half, '.1f')} points, and for ζ "
        f"from 3e-5 on Eq. 5 is {low} to {high} points better, on {wins} at each ζ.",
        f"λ = {n(decay, '.0f')} on all 100 images ends at {_mean(PLAIN_ALL, decay=decay, data=data)} %, "
        f"{_points(least)} above five folds with the better of Eq. 5 and `HyperDrift`, on {_wins(least)}. "
        f"On the 50 training images alone it is {_points(half)} above Eq. 5.",
        f"`pt.tune` reaches {_mean(TUNE, data=data)} %, {_points(front)} above it and better on {_wins(front)}; it "
        f"keeps the tuned model on {n(kept.count('the tuned model'))} of {n(len(kept))} draws",
    ]


def _large(data: str = "mnist", first: int = 5) -> tuple[str, str, str]:
    """Return the least and the largest mean of Eq. 5 − HyperDrift at large ζ, and on how many draws it is positive."""
    found = [gap(runs(data, "eq5", zeta), runs(data, "drift", zeta)) for zeta in ZETAS[first:]]
    means = [spread.mean for spread in found]
    (wins,) = {_wins(spread) for spread in found}
    return n(min(means), ".1f"), n(max(means), ".1f"), wins


def _signs() -> list[str]:
    plain, still = runs("mnist", PLAIN), runs("mnist", "zero, softplus, 0.01")
    apart = max(abs(still[draw][-1] - plain[draw][-1]) for draw in plain)
    lengths = {rate: [len(course) for course in runs("mnist", f"zero, any, {rate}").values()] for rate in (0.1, 0.3)}
    early = [length for length in lengths[0.1] if length < 100]
    stopped, at = _best(runs("mnist", ANY))
    peak, step = _best(runs("mnist", "zero, clamped, 0.1"))
    return [
        f"At an outer rate of {n(0.1)} this happened on {n(len(early))} of {n(len(lengths[0.1]))} draws, at step "
        f"{n(min(early))} or later, and at {n(0.3)} on {n(sum(length < 100 for length in lengths[0.3]))} of "
        f"{n(len(lengths[0.3]))}, between steps {n(min(lengths[0.3]))} and {n(max(lengths[0.3]))}.",
        f"The mean of ζ = 0 with any sign is {n(stopped, '.1f')} % after step {n(at)} and falls from there.",
        f"at an outer rate of {n(0.1)} the mean is {n(peak, '.1f')} % after step {n(step)} and "
        f"{_mean('zero, clamped, 0.1')} % at the end",
        f"it ends within {n(apart, '.2f')} points of plain training on every draw. At {n(0.1)} and {n(0.3)} it ends at "
        f"{_mean('zero, softplus, 0.1')} and {_mean('zero, softplus, 0.3')} %, below clamping.",
        *_starts(),
        *_signs_under_eq5(),
    ]


def _starts() -> list[str]:
    """Return what a softplus gives from starts that are not near 0."""
    starts = DECAYS[1:5]
    found = {start: runs("mnist", "zero, softplus, other starts", decay=start) for start in starts}
    gains = [gap(found[start], runs("mnist", PLAIN, decay=start)).mean for start in starts]
    *first, last = [n(gap(courses).mean, ".1f") for courses in found.values()]
    return [
        f"From 0.1, 0.3, 1 and 3, at the paper's outer rate, it ends at {', '.join(first)} and {last} %, "
        f"{n(min(gains), '.1f')} to {n(max(gains), '.1f')} points above the same decay kept fixed."
    ]


def _signs_under_eq5() -> list[str]:
    """Return what λ ≥ 0 gives together with Eq. 5, beside each alone."""
    both = {data: runs(data, "eq5, clamped, 0.01", paper_strength(data)) for data in NAMES}
    one = {data: gap(courses, runs(data, CLAMPED)) for data, courses in both.items()}
    other = {data: gap(courses, runs(data, "eq5", paper_strength(data))) for data, courses in both.items()}
    assert abs(other["mnist"].mean) < other["mnist"].half
    return [
        f"Eq. 5 with λ ≥ 0 is {_points(one['mnist'], -1)} below λ ≥ 0 at ζ = 0, and differs from Eq. 5 with λ of any "
        f"sign by {_points(other['mnist'])}.",
        f"On CIFAR-10 Eq. 5 with λ ≥ 0 is {_points(one['cifar10'])} above λ ≥ 0 at ζ = 0, and "
        f"{_points(other['cifar10'], -1)} below Eq. 5 with λ of any sign.",
    ]


def _all_images() -> list[str]:
    peak, step = _best(runs("mnist", PLAIN_ALL))
    clamped, plain = runs("mnist", CLAMPED), runs("mnist", PLAIN_ALL)
    level = gap(clamped, plain)
    assert abs(level.mean) < level.half
    for courses in (runs("mnist", PLAIN_ALL, decay=decay) for decay in (0.3, 1.0)):
        assert _best(courses)[0] - gap(courses).mean < 0.05, "the mean falls"
    return [
        f"On MNIST plain training on all images has {n(peak, '.1f')} % after step {n(step)} and {_mean(PLAIN_ALL)} % "
        "at the end.",
        f"with λ ≥ 0 at ζ = 0 only reaches plain training on all 100 ({_mean(CLAMPED)} and {_mean(PLAIN_ALL)} %)",
    ]


def method() -> list[str]:
    """Return what docs/evidence/method.md says about these runs."""
    zeta = paper_strength("mnist")
    eq5, drift = runs("mnist", "eq5", zeta), runs("mnist", "drift", zeta)
    apart = max(abs(eq5[draw][-1] - drift[draw][-1]) for draw in eq5)
    above, below = (gap(runs("mnist", way, 1e-3), runs("mnist", PLAIN)) for way in ("eq5", "drift"))
    assert below.positive == 0
    low, high, all_wins = _large()
    return [
        f"At the paper's ζ Eq. 5 ends at {_mean('eq5', zeta)} % and `HyperDrift` at {_mean('drift', zeta)} %; on no "
        f"draw do they differ by more than {n(apart, '.1f')} points.",
        f"For ζ from 1e-5 on Eq. 5 is {low} to {high} points better than `HyperDrift`, on {all_wins}.",
        f"At ζ = 1e-3 Eq. 5 ends {_points(above)} above plain training and `HyperDrift` {_points(below, -1)} below it.",
        f"with any sign ζ = 0 ends at {_mean(ANY)} %, with λ ≥ 0 at {_mean(CLAMPED)} %",
        *_method_cifar(),
    ]


def _method_cifar() -> list[str]:
    zeta = paper_strength("cifar10")
    eq5, drift = runs("cifar10", "eq5", zeta), runs("cifar10", "drift", zeta)
    apart = max(abs(eq5[draw][-1] - drift[draw][-1]) for draw in eq5)
    below = gap(eq5, runs("cifar10", CLAMPED))
    return [
        f"on no draw do the two differ by more than {n(apart, '.1f')} points at the paper's ζ, and from 3e-5 on Eq. 5 "
        f"is the better one. But there λ ≥ 0 at ζ = 0 is {_points(below)} below Eq. 5, on {_wins(below)}",
    ]
