"""Whether tuning paid, and how that is known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pactune.results.result import Result

__all__ = ["Verdict", "diverged_at", "judge_held_out", "judge_run"]


class Verdict(NamedTuple):
    """Whether tuning paid; None when it cannot be said."""

    pays: bool | None
    verdict: str


def judge_held_out(gain: float, error: float) -> Verdict:
    """Judge by the paired gain on held-out rows, with its standard error."""
    numbers = f"gain over plain training on held-out rows {gain:.3f} ± {error:.3f} (one standard error)"
    if gain <= 0:
        return Verdict(False, f"tuning does not pay: {numbers}")
    if gain <= error:
        return Verdict(None, f"unclear whether tuning pays: {numbers}")
    return Verdict(True, f"tuning pays: {numbers}")


def judge_run(result: Result) -> Verdict:
    """Judge a run at a fixed ζ: by the test set where one was given, else by the objective.

    The objective of the first outer step is that of plain training, since λ has not moved yet.
    """
    if not result.rows or not result.plain_rows:
        return Verdict(None, "nothing to compare with plain training")
    if (step := diverged_at(result.plain_rows)) is not None:
        return Verdict(None, f"nothing to compare with: plain training diverged in outer step {step}")
    kept, plain = result.kept, result.plain_rows[-1]
    for name, sign in (("test_accuracy", 1), ("test_risk", -1)):
        if name in kept and name in plain:
            return _by_test(name.replace("_", " "), kept[name], plain[name], sign)
    return _by_objective(kept, result.rows[0])


def diverged_at(rows: list[dict[str, Any]]) -> int | None:
    """Return the outer step in which a run's parameters or training risk ceased to be finite; None if they are."""
    wrong = [
        row for row in rows if not all(math.isfinite(row.get(name, 0.0)) for name in ("weight_norm", "train_risk"))
    ]
    return int(wrong[0]["outer_step"]) if wrong else None


def _by_test(what: str, tuned: float, plain: float, sign: int) -> Verdict:
    pays = sign * (tuned - plain) > 0
    words = "pays" if pays else "does not pay"
    return Verdict(pays, f"tuning {words} on the test set: {what} {tuned:.4g}, plain training {plain:.4g}")


def _by_objective(kept: dict[str, Any], first: dict[str, Any]) -> Verdict:
    pays = kept["objective"] < first["objective"]
    words = f"J {kept['objective']:.4g} at the kept step, {first['objective']:.4g} before λ moved"
    if not pays:
        return Verdict(False, f"tuning does not pay: {words}")
    return Verdict(
        True, f"tuning lowered the objective: {words}; no data was held out, so this is no proof that it pays"
    )
