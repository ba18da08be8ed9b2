"""Ray Tune: report Eq. 5 and its parts from inside a trainable."""

from __future__ import annotations

from typing import Any

from pactune.extras import require
from pactune.integrations.reading import RiskReading, Zeta

__all__ = ["report"]


def report(reading: RiskReading, *, zeta: Zeta, checkpoint: Any = None, **metrics: Any) -> dict[str, Any]:
    """Call `ray.tune.report` with `objective`, `valid_risk`, `regularizer`, `zeta` and your own metrics.

    Use `tune.TuneConfig(metric="objective", mode="min")`; every scheduler of Ray Tune then stops by Eq. 5.

    Args:
        reading: monitor, validation risk and, for "theory", the learning rate.
        zeta: a number ≥ 0, or "theory".
        checkpoint: a `ray.tune.Checkpoint`.
        metrics: further values to report.

    Returns:
        The reported values.

    Raises:
        DivergenceError: the risk or the regularizer is not finite; Ray then counts the trial as failed.
    """
    tune = require("ray.tune")
    found = {**metrics, **reading.score(zeta)._asdict()}
    tune.report(found, checkpoint=checkpoint)
    return found
