"""The numbers about example weights under wrong labels in docs/evidence/decays.md and on the method's page.

`docs/weight_ways_table.py` makes the tables.
"""

from __future__ import annotations

import statistics
from typing import Any

from claims.decays import Courses, Spread, gap
from claims.text import n, read

__all__ = [
    "ALLOWED",
    "NOISES",
    "TUNED",
    "aucs",
    "best_step",
    "best_zeta",
    "claims",
    "method",
    "runs",
    "short",
    "signed",
    "zetas",
]

FILE = "benchmarks/results/weight_ways.json"
NOISES = ("pair", "random")
TUNED = ("eq5", "drift")
LARGE = 1.0
ALLOWED = [
    '"pair" turns 45 % of the labels',
    '"random" replaces 80 % of them',
    "SGD 0.03 inside and Adam 0.1 outside",
    "outer rates of 0.1 and 0.3",
    "at 0.3 ζ = 0",
    "At the same ζ of 1e-3 or less",
]


def runs(noise: str, way: str, zeta: float = 0.0) -> Courses:
    """Return the test accuracy along the runs of a way, by draw."""
    return {run["draw"]: run["test_accuracy"] for run in _cells(noise, way, zeta)}


def aucs(noise: str, way: str, zeta: float = 0.0) -> Courses:
    """Return how well the weights at the end rank wrong labels, by draw."""
    return {run["draw"]: [run["auc"]] for run in _cells(noise, way, zeta)}


def zetas() -> list[float]:
    """Return the ζ of the study, from small to large."""
    return sorted({run["zeta"] for run in read(FILE)["runs"] if run["way"] in TUNED})


def best_zeta(noise: str, way: str) -> float:
    """Return the ζ with the largest mean test accuracy at the last step."""
    return max(zetas(), key=lambda zeta: gap(runs(noise, way, zeta)).mean)


def best_step(courses: Courses) -> tuple[Courses, int]:
    """Return the runs cut at the step with the largest mean test accuracy, and this step."""
    means = [statistics.mean(values) for values in zip(*courses.values(), strict=True)]
    step = max(range(len(means)), key=means.__getitem__) + 1
    return {draw: course[:step] for draw, course in courses.items()}, step


def _cells(noise: str, way: str, zeta: float) -> list[dict[str, Any]]:
    found = read(FILE)["runs"]
    return [run for run in found if (run["noise"], run["way"], run["zeta"]) == (noise, way, zeta)]


def short(zeta: float) -> str:
    """Return ζ as a page shows it."""
    return n(zeta, "g") if zeta >= 0.01 else n(zeta, ".0e")


def _mean(noise: str, way: str, zeta: float = 0.0) -> str:
    return n(gap(runs(noise, way, zeta)).mean, ".1f")


def _points(found: Spread) -> str:
    return f"{n(found.mean, '.1f')} ± {n(found.half, '.1f')} points"


def _wins(found: Spread) -> str:
    return f"{n(found.positive)} of {n(found.draws)} draws"


def _best(noise: str, way: str) -> Courses:
    return runs(noise, way, best_zeta(noise, way))


def _ends(noise: str) -> str:
    """Return where both objectives end at their best ζ."""
    own, other = best_zeta(noise, "eq5"), best_zeta(noise, "drift")
    return (
        f"Eq. 5 ends at {_mean(noise, 'eq5', own)} % with ζ = {short(own)} and `HyperDrift` at "
        f"{_mean(noise, 'drift', other)} % with ζ = {short(other)}"
    )


def claims() -> list[str]:
    """Return what docs/evidence/decays.md says about example weights."""
    return [*_setting(), *_objectives(), *_rows()]


def _setting() -> list[str]:
    stored = read(FILE)
    draws = {run["draw"] for run in stored["runs"]}

    def design(way: str, zeta: float, outer: float) -> float:
        cell = (way, zeta, [0.03, outer])
        found = [run for run in stored["design"] if (run["way"], run["zeta"], run["rates"]) == cell]
        return statistics.mean(run["test_accuracy"][-1] for run in found)

    gain = design("zero", 0.0, 0.3) - design("zero", 0.0, 0.1)
    loss = design("drift", 3e-3, 0.1) - design("drift", 3e-3, 0.3)
    return [
        f"the mean test accuracy over {n(len(draws))} draws after the last outer step, without any choice",
        f"at 0.3 ζ = 0 ended {n(gain, '.1f')} points higher, and `HyperDrift` with ζ = {short(3e-3)} "
        f"{n(loss, '.1f')} points lower",
    ]


def _objectives() -> list[str]:
    found = []
    for noise in NOISES:
        apart = gap(_best(noise, "eq5"), _best(noise, "drift"))
        assert (abs(apart.mean) < apart.half) == (noise == "pair"), "the page says which are level"
        found.append(f'Under "{noise}" {_ends(noise)}. The difference is {_signed(apart)}, positive on {_wins(apart)}.')
    pair, random = (gap(_best(noise, "eq5"), runs(noise, "zero")) for noise in NOISES)
    pulled, drawn = (gap(_best(noise, "drift"), runs(noise, "zero")) for noise in NOISES)
    assert all(best_zeta(noise, "eq5") == max(zetas()) for noise in NOISES)
    flat = max(abs(gap(runs(noise, "eq5", LARGE), runs(noise, "eq5", 0.1)).mean) for noise in NOISES)
    small = [gap(runs(noise, "eq5", zeta), runs(noise, "drift", zeta)).mean for noise in NOISES for zeta in zetas()[:3]]
    assert max(small) < 0
    assert zetas()[2] == 1e-3
    return [
        *found,
        f'Under "pair" the gain of Eq. 5 at its best ζ over ζ = 0 is {_signed(pair)} and that of `HyperDrift` '
        f'{_signed(pulled)}; under "random" the gains are {_signed(random)} and {_signed(drawn)}.',
        f"from ζ = {n(0.1)} to ζ = {n(LARGE, 'g')} its mean changes by {n(flat, '.1f')} points or less",
        f"At the same ζ of 1e-3 or less `HyperDrift` is ahead by {n(-min(small), '.1f')} points or less.",
        f'With ζ = {n(LARGE, "g")} Eq. 5 ends at {_mean("pair", "eq5", LARGE)} % under "pair" and at '
        f'{_mean("random", "eq5", LARGE)} % under "random". `HyperDrift` ends at {_mean("pair", "drift", LARGE)} % '
        f"and {_mean('random', 'drift', LARGE)} %, within {n(_from_plain(), '.1f')} points of plain training on every "
        "draw.",
        *_ranks(),
    ]


def signed(value: float) -> str:
    """Return a difference with its sign, and without one if it is shown as 0.0."""
    return n(value, "+.1f" if abs(value) >= 0.05 else ".1f", minus="−").replace("−0.0", "0.0")


def _signed(found: Spread) -> str:
    return f"{signed(found.mean)} ± {n(found.half, '.1f')} points"


def _from_plain() -> float:
    """Return the largest distance of HyperDrift at a large ζ from plain training."""
    pairs = [(runs(noise, "drift", LARGE), runs(noise, "plain")) for noise in NOISES]
    return max(abs(own[draw][-1] - plain[draw][-1]) for own, plain in pairs for draw in own)


def _ranks() -> list[str]:
    def of(noise: str, way: str, zeta: float = 0.0) -> float:
        return gap(aucs(noise, way, zeta)).mean

    eq5 = [of(noise, "eq5", zeta) for noise in NOISES for zeta in zetas()]
    zero = [of(noise, "zero") for noise in NOISES]
    drift = [of(noise, "drift", 3e-3) for noise in NOISES]
    return [
        f'With ζ = 0 the AUC is {n(zero[0], ".2f")} under "pair" and {n(zero[1], ".2f")} under "random". Eq. 5 stays '
        f"between {n(min(eq5), '.2f')} and {n(max(eq5), '.2f')} at all ζ. `HyperDrift` with ζ = {short(3e-3)} has "
        f"{n(drift[0], '.2f')} and {n(drift[1], '.2f')}",
    ]


def _rows() -> list[str]:
    above, below = (gap(_best(noise, "eq5"), runs(noise, "clean")) for noise in NOISES)
    assert above.mean - above.half > 0
    assert abs(below.mean) < below.half, "the page says that they are level"
    longer = [gap(runs(noise, "zero, ten steps"), runs(noise, "zero")) for noise in NOISES]
    highest = gap(runs("pair", "zero, ten steps")).mean
    assert all(gap(_best("pair", way)).mean < highest for way in TUNED)
    stopped, step = best_step(runs("random", "plain"))
    return [
        f'Under "pair" Eq. 5 at its best ζ is {_points(above)} above training on the 100 clean rows alone. Under '
        f'"random" the difference is {_signed(below)}, positive on {_wins(below)}.',
        f'Under "random" the mean of plain training is {n(gap(stopped).mean, ".1f")} % after step {n(step)} and '
        f"{_mean('random', 'plain')} % at the end.",
        f'K = 10 for the risk at ζ = 0 gains {_signed(longer[0])} under "pair" and {_signed(longer[1])} under "random"',
    ]


def method() -> list[str]:
    """Return what docs/evidence/method.md says about example weights."""
    apart = [gap(_best(noise, "eq5"), _best(noise, "drift")) for noise in NOISES]
    (own, other), (pulled, drawn) = ([_mean(noise, way, LARGE) for noise in NOISES] for way in TUNED)
    return [
        f"At the best ζ of each, by test accuracy, Eq. 5 minus `HyperDrift` is {_signed(apart[0])} with one kind of "
        f"wrong labels and {_signed(apart[1])} with the other.",
        f"With ζ = {n(LARGE, 'g')} Eq. 5 ends at {own} and {other} %, and `HyperDrift` at {pulled} and {drawn} %, as "
        "plain training does.",
    ]
