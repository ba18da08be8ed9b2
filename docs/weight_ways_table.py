"""The tables about example weights in docs/evidence/decays.md, from benchmarks/results/weight_ways.json."""

from __future__ import annotations

from collections.abc import Callable

from claims.decays import Courses, gap
from claims.text import CLOSE, OPEN, n
from claims.weights import NOISES, TUNED, aucs, best_step, best_zeta, runs, short, signed, zetas
from make_certificates import markdown

__all__ = ["weight_tables"]


def weight_tables() -> dict[str, str]:
    """Return the tables by name."""
    return {"weights": objectives_table(), "rows": ways_table()}


def objectives_table() -> str:
    """Return Eq. 5 and HyperDrift by noise and ζ."""
    header = ("labels", "ζ", "Eq. 5", "`HyperDrift`", "difference", "AUC, Eq. 5", "AUC, `HyperDrift`")
    rows = []
    for noise in NOISES:
        for zeta in zetas():
            eq5, drift = (runs(noise, way, zeta) for way in TUNED)
            shown = [_plus_minus(eq5), _plus_minus(drift), _difference(eq5, drift)]
            rows.append([noise, _number(zeta), *shown, *(_auc(noise, way, zeta) for way in TUNED)])
    return markdown(header, rows)


def ways_table() -> str:
    """Return every way to use the rows of a draw, without ζ or at its best one."""
    header = ("how the rows are used", *(f"{noise}{column}" for noise in NOISES for column in ("", ", AUC")))
    ways: dict[str, Callable[[str], tuple[str, str]]] = {
        "weights of 1, last step": lambda noise: (_plus_minus(runs(noise, "plain")), ""),
        "weights of 1, best step by test accuracy": lambda noise: (_stopped(noise), ""),
        "weights of 1, clean rows train too": lambda noise: (_plus_minus(runs(noise, "both")), ""),
        "clean rows alone": lambda noise: (_plus_minus(runs(noise, "clean")), ""),
        "tuned, ζ = 0": lambda noise: _at(noise, "zero", 0.0),
        "tuned, ζ = 0, K = 10": lambda noise: _at(noise, "zero, ten steps", 0.0),
        "tuned, Eq. 5, best ζ by test accuracy": lambda noise: _at(noise, "eq5", best_zeta(noise, "eq5")),
        "tuned, `HyperDrift`, best ζ by test accuracy": lambda noise: _at(noise, "drift", best_zeta(noise, "drift")),
    }
    return markdown(header, [[words, *(cell for noise in NOISES for cell in of(noise))] for words, of in ways.items()])


def _stopped(noise: str) -> str:
    courses, step = best_step(runs(noise, "plain"))
    return f"{_plus_minus(courses)}, step {step}"


def _at(noise: str, way: str, zeta: float) -> tuple[str, str]:
    """Return the accuracy, with ζ if it was picked, and the AUC."""
    shown = _plus_minus(runs(noise, way, zeta))
    return f"{shown}, ζ = {_number(zeta)}" if zeta else shown, _auc(noise, way, zeta)


def _plus_minus(courses: Courses) -> str:
    found = gap(courses)
    return f"{_shown(found.mean, '.1f')} ± {_shown(found.half, '.1f')}"


def _difference(own: Courses, other: Courses) -> str:
    found = gap(own, other)
    shown = f"{signed(found.mean).strip(OPEN + CLOSE)} ± {_shown(found.half, '.1f')}"
    return f"{shown}, {found.positive} of {found.draws}"


def _auc(noise: str, way: str, zeta: float = 0.0) -> str:
    return _shown(gap(aucs(noise, way, zeta)).mean, ".2f")


def _shown(number: float, form: str) -> str:
    return n(number, form, minus="−").strip(OPEN + CLOSE)


def _number(zeta: float) -> str:
    return short(zeta).strip(OPEN + CLOSE)
