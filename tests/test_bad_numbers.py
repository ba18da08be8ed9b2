"""Settings out of their range are refused where they are written, by name, rule and value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import pactune as pt

NAN = float("nan")
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "negative ζ": (lambda: pt.PACBayes(-1e-6), "`zeta` must be a finite number ≥ 0.*got -1e-06"),
    "infinite ζ": (lambda: pt.PACBayes(math.inf), "`zeta`"),
    "ζ that is no number": (lambda: pt.Flatness("big"), "`zeta`.*got 'big'"),
    "clip of zero": (lambda: pt.PACBayes(1.0, clip_valid=0.0), "`clip_valid` must be a positive norm"),
    "mean somewhere": (lambda: pt.PACBayes(1.0, chain_mean="both"), "`chain_mean` must be"),
    "step of zero": (lambda: pt.SGD(0.0), "`lr` must be a positive finite number, got 0.0"),
    "step that is no number": (lambda: pt.Adam(NAN), "`lr`"),
    "momentum of one": (lambda: pt.SGD(0.1, momentum=1.0), r"`momentum` must be in \[0, 1\)"),
    "nesterov alone": (lambda: pt.SGD(0.1, nesterov=True), "needs a positive `momentum`"),
    "one beta": (lambda: pt.Adam(0.1, betas=(0.9, 1.0)), "`betas`"),
    "no temperature": (lambda: pt.Langevin(0.1, inverse_temperature=0.0), "`inverse_temperature` must be"),
    "prior's step": (lambda: pt.UnequalSteps(valid_lr=-1.0), "`valid_lr`"),
    "negative series": (lambda: pt.Neumann(-1), "`steps` must be ≥ 0"),
    "no products": (lambda: pt.ConjugateGradient(0), "`steps` must be ≥ 1"),
    "negative damping": (lambda: pt.ConjugateGradient(3, damping=-1.0), "`damping`"),
}


@pytest.mark.parametrize("name", CASES)
def test_number_out_of_range(name: str) -> None:
    call, message = CASES[name]
    with pytest.raises(pt.SettingError, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)
