"""The settings that all cells of a sweep share: the arguments of `Tuner.fit`, and the resources of a cell."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from pactune.checks import check_count, is_number
from pactune.errors import SettingError
from pactune.tuning.fit_settings import FitSettings, Keep

__all__ = ["CellFit", "Resources"]


@dataclass(frozen=True)
class CellFit:
    """How a cell is fitted, as a journal can hold it.

    Attributes:
        outer_steps: as in `Tuner.fit`, like the next three.
        keep: as in `Tuner.fit`.
        tolerance: as in `Tuner.fit`.
        plain_steps: as in `Tuner.fit`.
        build: the name of the function that makes the tuners.
        test: the fingerprint of the test set; None without one.
        evaluate_every: as in `Tuner.fit`.
    """

    outer_steps: int
    keep: Keep
    tolerance: float
    plain_steps: int | None
    build: str
    test: str | None
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        FitSettings(**self.arguments())

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Tuner.fit`, without the test set."""
        return {name: value for name, value in asdict(self).items() if name not in ("build", "test")}


@dataclass(frozen=True)
class Resources:
    """The resources of one cell.

    Attributes:
        cpus: CPU cores.
        gpus: GPUs.
        retries: how often Ray runs the cell again after its worker or node died.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        for name, value, least in (("cpus", self.cpus, "> 0"), ("gpus", self.gpus, "≥ 0")):
            if not _is_amount(value) or (least == "> 0" and value == 0):
                raise SettingError(
                    f"`{name}` must be a number {least}, and whole where it is more than 1, got {value!r}"
                )
        check_count("retries", self.retries, 0)

    @property
    def threads(self) -> int:
        """How many threads torch uses in the cell."""
        return max(1, int(self.cpus))


def _is_amount(value: object) -> bool:
    """Return True if Ray accepts the value: a fraction up to 1, or a whole number."""
    if not is_number(value) or not math.isfinite(value):
        return False
    return 0 <= value <= 1 or (value > 1 and value == int(value))
