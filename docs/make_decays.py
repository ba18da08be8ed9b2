"""Write the tables of docs/evidence/decays.md: `python docs/make_decays.py`.

They come from benchmarks/results/decay_ways_*.json and weight_ways.json; a data set is shown as soon as it has a file.
`python docs/make_numbers.py` does this for all pages. A test fails when a page is out of date.
"""

from __future__ import annotations

from pathlib import Path

from claims.decays import DECAYS, TUNE, ZETAS, Courses, data_sets, gap, paper_strength, runs
from claims.text import CLOSE, OPEN, fill_tables, n, read
from make_certificates import markdown
from weight_ways_table import weight_tables

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "decays.md"
RATES = (0.01, 0.1, 0.3)
NOT_RUN = "not run"
SIGNS = {
    "ζ = 0, λ of any sign": "zero, any",
    "ζ = 0, λ ≥ 0 by a softplus from 0.001": "zero, softplus",
    "ζ = 0, λ ≥ 0 by clamping": "zero, clamped",
    "Eq. 5 at the paper's ζ, any sign": "eq5",
    "Eq. 5 at the paper's ζ, λ ≥ 0 by clamping": "eq5, clamped",
    "`HyperDrift` at the same ζ, any sign": "drift",
}
ZETA_SCANS = ("eq5", "drift")  # at the first rate these have one name for all ζ
FOLDS = {
    "five folds, ζ = 0, λ ≥ 0 by clamping": ("folds, zero, clamped", 0.0),
    "five folds, ζ = 0, λ ≥ 0 by a softplus from 0.001": ("folds, zero, softplus", 0.0),
    "five folds, Eq. 5 at the paper's ζ": ("folds, eq5, any", None),
    "five folds, Eq. 5, ζ = 1e-5": ("folds, eq5, any", 1e-5),
    "five folds, `HyperDrift` at the paper's ζ": ("folds, drift, any", None),
    "five folds, `HyperDrift`, ζ = 1e-5": ("folds, drift, any", 1e-5),
    "`pt.tune`": (TUNE, 0.0),
}


def tables() -> dict[str, str]:
    """Return every table of the page by its name."""
    found = {"signs": signs_table(), "zetas": zetas_table(), "one": one_table(), "folds": folds_table()}
    return found | weight_tables()


def page() -> str:
    """Return the page with its tables as the results say."""
    return fill_tables(PAGE.read_text(encoding="utf-8"), tables())


def signs_table() -> str:
    """Return the ways to move λ, by outer learning rate."""
    rows = []
    for data, name in data_sets().items():
        for words, way in SIGNS.items():
            rows.append([name, words, *(_accuracy(_at_rate(data, way, rate), _steps(data)) for rate in RATES)])
    return markdown(("data", "how λ is tuned", *(f"outer rate {rate:g}" for rate in RATES)), rows)


def zetas_table() -> str:
    """Return Eq. 5 and HyperDrift by ζ."""
    columns = ("Eq. 5", "`HyperDrift`", "difference")
    header = ("ζ", *(f"{name}, {column}" for name in data_sets().values() for column in columns))
    rows = []
    for zeta in ZETAS:
        cells = []
        for data in data_sets():
            eq5, drift = (runs(data, way, zeta) for way in ("eq5", "drift"))
            cells += [_accuracy(eq5, _steps(data)), _accuracy(drift, _steps(data)), _difference(eq5, drift)]
        rows.append([_short(zeta), *cells])
    return markdown(header, rows)


def one_table() -> str:
    """Return one decay for all parameters, on half of the images and on all of them."""
    header = ("λ", *(f"{name}, {images}" for name in data_sets().values() for images in ("50 images", "100 images")))
    rows = []
    for decay in DECAYS:
        ways = [(data, f"one decay, {part}") for data in data_sets() for part in ("half", "all")]
        rows.append([f"{decay:g}", *(_accuracy(runs(data, way, decay=decay), _steps(data)) for data, way in ways)])
    return markdown(header, rows)


def folds_table() -> str:
    """Return the ways that train on all images, and what they gain over plain training."""
    names = data_sets().values()
    header = ("all 100 images", *(f"{name}{column}" for name in names for column in ("", ", minus plain")))
    rows = [["plain training, λ = 0"], ["one decay, the best λ by test accuracy"], *([words] for words in FOLDS)]
    for data in data_sets():
        plain, (decay, best) = runs(data, "one decay, all"), _best_decay(data)
        tuned = [runs(data, way, paper_strength(data) if zeta is None else zeta) for way, zeta in FOLDS.values()]
        steps = _steps(data)
        lengths = [steps, steps, *(1 if way == TUNE else steps for way, _ in FOLDS.values())]  # `pt.tune` has one look
        accuracies = [_accuracy(*pair) for pair in zip((plain, best, *tuned), lengths, strict=True)]
        accuracies[1] += f", λ = {decay:g}" if best else ""
        gains = ["", *(_difference(courses, plain) for courses in (best, *tuned))]
        for row, *cells in zip(rows, accuracies, gains, strict=True):
            row += cells
    return markdown(header, rows)


def _at_rate(data: str, way: str, rate: float) -> Courses:
    """Return the runs of a way at an outer learning rate."""
    zeta = 0.0 if way.startswith("zero") else paper_strength(data)
    name = way if way in ZETA_SCANS and rate == RATES[0] else f"{way}, {rate:g}"
    return runs(data, name, zeta)


def _best_decay(data: str) -> tuple[float, Courses]:
    """Return the single decay with the largest mean test accuracy on all images, and its runs."""
    found = [(decay, runs(data, "one decay, all", decay=decay)) for decay in DECAYS]
    return max(found, key=lambda pair: gap(pair[1]).mean if pair[1] else 0.0)


def _steps(data: str) -> int:
    steps: int = read(f"benchmarks/results/decay_ways_{data}.json")["outer_steps"]
    return steps


def _accuracy(courses: Courses, steps: int) -> str:
    """Return the accuracy at the last step with half its 95 % interval, and how many runs diverged."""
    if not courses:
        return NOT_RUN
    found, ended = gap(courses), sum(len(course) < steps for course in courses.values())
    shown = f"{_one_place(found.mean)} ± {_one_place(found.half)}"
    return f"{shown}, {ended} of {found.draws} diverged" if ended else shown


def _difference(own: Courses, other: Courses) -> str:
    """Return a paired difference with half its 95 % interval, and on how many draws it is positive."""
    if not (own and other):
        return NOT_RUN
    found = gap(own, other)
    return f"{_one_place(found.mean, '+')} ± {_one_place(found.half)}, {found.positive} of {found.draws}"


def _one_place(number: float, sign: str = "") -> str:
    """Return a number rounded as the prose of the page rounds it."""
    shown = n(number, f"{sign}.1f", minus="−").strip(OPEN + CLOSE)
    return "0.0" if shown.strip("+−") == "0.0" else shown


def _short(number: float) -> str:
    return f"{number:.0e}".replace("e-0", "e-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
