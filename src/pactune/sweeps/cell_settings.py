"""What every cell of a sweep shares: how it is fitted, and what it may use."""

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
    """The arguments of `Tuner.fit` that a sweep hands on; `build` and `test` are known by name and checksum only."""

    outer_steps: int
    keep: Keep
    tolerance: float
    plain_steps: int | None
    build: str
    test: str | None

    def __post_init__(self) -> None:
        FitSettings(
            outer_steps=self.outer_steps, keep=self.keep, tolerance=self.tolerance, plain_steps=self.plain_steps
        )

    def arguments(self) -> dict[str, Any]:
        """Return what goes to `Tuner.fit` as it is."""
        return {name: value for name, value in asdict(self).items() if name not in ("build", "test")}


@dataclass(frozen=True)
class Resources:
    """What one cell may use, and how often it is tried again when its worker or node dies."""

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
        """How many threads torch may use, wherever the cell runs."""
        return max(1, int(self.cpus))


def _is_amount(value: object) -> bool:
    if not is_number(value) or not math.isfinite(value):
        return False
    return 0 <= value <= 1 or (value > 1 and value == int(value))
