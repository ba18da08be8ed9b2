"""The verdict: does tuning pay, and by which numbers is that known?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pactune.columns import DIVERGENCE_COLUMNS, RISK, Row, column_title, judged_column

if TYPE_CHECKING:
    from pactune.results.result import Result

__all__ = ["Verdict", "diverged_at", "judge_held_out", "judge_run"]


class Verdict(NamedTuple):
    """True if tuning pays, False if it does not, None if that is unclear; and the reason in words."""

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


def judge_run(result: Result, *, higher_is_better: bool = True) -> Verdict:
    """Judge a run at a fixed ζ by its test set, or by the objective if there is no test set.

    On a test set the problem's first metric decides, or the risk if the problem has no metric. Without a test set the
    objective of the kept step is compared with that of the first one, which is plain training: λ has not moved yet.

    Args:
        result: the run; `verdict` and `pays` are not read.
        higher_is_better: the direction of the first metric.
    """
    if not result.rows or not result.plain_rows:
        return Verdict(None, "nothing to compare with plain training")
    if (step := diverged_at(result.plain_rows)) is not None:
        return Verdict(None, f"nothing to compare with: plain training diverged in outer step {step}")
    kept, plain = result.kept, result.plain_rows[-1]
    column = judged_column(kept)
    if not kept:
        return Verdict(None, f"nothing to compare with: the journal has lost the row of outer step {result.kept_step}")
    if column is None or column not in plain:
        tested = any(judged_column(row) is not None for row in (result.rows[-1], plain))
        return _by_objective(kept, result.rows[0], evaluated=not tested)
    sign = 1 if higher_is_better and column != f"test_{RISK}" else -1
    return _by_test(column_title(column), kept[column], plain[column], sign)


def diverged_at(rows: Iterable[Row]) -> int | None:
    """Return the first outer step whose parameters or training risk are not finite; None if all are."""
    for row in rows:
        if not all(math.isfinite(row.get(name, 0.0)) for name in DIVERGENCE_COLUMNS):
            return int(row["outer_step"])
    return None


def _by_test(title: str, tuned: float, plain: float, sign: int) -> Verdict:
    pays = sign * (tuned - plain) > 0
    words = "pays" if pays else "does not pay"
    return Verdict(pays, f"tuning {words} on the test set: {title} {tuned:.4g}, plain training {plain:.4g}")


def _by_objective(kept: Row, first: Row, *, evaluated: bool) -> Verdict:
    pays = kept["objective"] < first["objective"]
    words = f"J {kept['objective']:.4g} at the kept step, {first['objective']:.4g} before λ moved"
    if not pays:
        return Verdict(False, f"tuning does not pay: {words}")
    reason = "no data was held out" if evaluated else "the kept step was not evaluated on the test set"
    return Verdict(True, f"tuning lowered the objective: {words}; {reason}, so this is no proof that it pays")
