"""The monitor and the validation risk that a training loop passes to a study, and Eq. 5 computed from them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from pactune.errors import SettingError
from pactune.monitor import CoherenceMonitor

__all__ = ["RiskReading", "Score", "Zeta", "as_reading"]

Zeta = float | Literal["theory"]


class Score(NamedTuple):
    """Eq. 5 and its parts, as numbers: objective = valid_risk + zeta · regularizer."""

    objective: float
    valid_risk: float
    regularizer: float
    zeta: float


class RiskReading(NamedTuple):
    """The values of Eq. 5 at one point of a training run, usually the end of an epoch.

    Attributes:
        monitor: of the run.
        valid_risk: R_V of the model as it stands, on the whole validation set.
        lr: the learning rate, for `zeta="theory"` only.
    """

    monitor: CoherenceMonitor
    valid_risk: float | Tensor
    lr: float | None = None

    def score(self, zeta: Zeta) -> Score:
        """Return Eq. 5 at ζ, with its parts.

        Raises:
            DivergenceError: the risk or the regularizer is not finite.
        """
        risk = self.monitor.objective(self.valid_risk, 0.0)
        total = self.monitor.objective(self.valid_risk, zeta, lr=self.lr)
        regularizer = self.monitor.regularizer
        factor = (total - risk) / regularizer if regularizer else 0.0
        return Score(total, risk, regularizer, float(zeta) if zeta != "theory" else factor)


def as_reading(given: object) -> RiskReading:
    """Return the tuple that a training function yielded as a `RiskReading`."""
    if isinstance(given, tuple) and 2 <= len(given) <= 3 and isinstance(given[0], CoherenceMonitor):
        return RiskReading(*given)
    raise SettingError(
        f"a training function must yield (monitor, valid_risk) or (monitor, valid_risk, lr), got {given!r}"
    )
