"""Bounds on numbers: golden values, order among them, and monotonicity in everything."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pactune import bounds
from pactune.errors import SettingError

risks, kls = st.floats(0, 1), st.floats(0, 1e4)
rows, deltas = st.integers(8, 10**6), st.floats(1e-9, 0.999)
BOUNDS = {
    "maurer-seeger": bounds.maurer_seeger,
    "pinsker": bounds.pinsker,
    "mcallester": bounds.mcallester,
    "catoni": lambda risk, kl, n, delta: bounds.catoni(risk, kl, n, delta, 1.0),
    "path": bounds.path_bound,
}


def test_golden_values() -> None:
    # by mpmath: roots of kl(0.1‖p) = log(20)/1000 and = (10 + log(40√1000))/1000
    assert bounds.hold_out(0.1, 1000, 0.05) == pytest.approx(0.1248081941725693, abs=1e-12)
    assert bounds.maurer_seeger(0.1, 10.0, 1000, 0.05) == pytest.approx(0.1644761778363172, abs=1e-12)
    assert bounds.pinsker(0.1, 10.0, 1000, 0.05) == pytest.approx(
        0.1 + math.sqrt((10 + math.log(40 * 1000**0.5)) / 2000)
    )
    assert bounds.mcallester(0.1, 10.0, 1000, 0.05) == pytest.approx(0.1 + math.sqrt((10 + math.log(80000)) / 1999))
    catoni = (1 - math.exp(-0.1 - (10 + math.log(20)) / 1000)) / (1 - math.exp(-1))
    assert bounds.catoni(0.1, 10.0, 1000, 0.05, 1.0) == pytest.approx(catoni, rel=1e-12)


@pytest.mark.parametrize("name", BOUNDS)
@given(risk=risks, kl=kls, n=rows, delta=deltas)
def test_bound_is_at_least_the_empirical_risk(name: str, risk: float, kl: float, n: int, delta: float) -> None:
    assert BOUNDS[name](risk, kl, n, delta) >= risk


@pytest.mark.parametrize("name", BOUNDS)
@given(risk=risks, kl=kls, n=rows, delta=deltas, more=st.floats(0, 100), factor=st.floats(0.01, 1))
def test_bound_grows_with_divergence_and_confidence(
    name: str, risk: float, kl: float, n: int, delta: float, more: float, factor: float
) -> None:
    here = BOUNDS[name](risk, kl, n, delta)
    assert BOUNDS[name](risk, kl + more, n, delta) >= here - 1e-12
    assert BOUNDS[name](risk, kl, n, delta * factor) >= here - 1e-12


@given(risk=risks, kl=kls, n=rows, delta=deltas)
def test_kl_form_is_never_worse_than_pinsker(risk: float, kl: float, n: int, delta: float) -> None:
    assert bounds.maurer_seeger(risk, kl, n, delta) <= bounds.pinsker(risk, kl, n, delta) + 1e-9


@given(risk=risks, n=rows, delta=deltas)
def test_hold_out_is_the_tightest(risk: float, n: int, delta: float) -> None:
    assert bounds.hold_out(risk, n, delta) <= bounds.maurer_seeger(risk, 0.0, n, delta)


def test_a_negative_log_ratio_gives_no_less_than_the_empirical_risk() -> None:
    assert bounds.path_bound(0.2, -1e3, 100, 0.05) == 0.2


def test_catoni_pays_for_its_grid() -> None:
    grid = [0.5, 1.0, 2.0]
    best = min(bounds.catoni(0.1, 10.0, 1000, 0.05, c) for c in grid)
    assert bounds.catoni_grid(0.1, 10.0, 1000, 0.05, grid) > best


@pytest.mark.parametrize(
    ("risk", "kl", "n", "delta", "word"),
    [
        (1.2, 1.0, 100, 0.05, "risk"),
        (0.1, -1.0, 100, 0.05, "kl"),
        (0.1, 1.0, 7, 0.05, "n"),
        (0.1, 1.0, 100, 0.0, "delta"),
    ],
)
def test_wrong_numbers_are_refused(risk: float, kl: float, n: int, delta: float, word: str) -> None:
    with pytest.raises(SettingError, match=f"`{word}` must be"):
        bounds.maurer_seeger(risk, kl, n, delta)
    with pytest.raises(SettingError, match="finite"):
        bounds.path_bound(0.1, math.inf, 100, 0.05)
