"""The exception family: every error pactune raises on purpose derives from `PactuneError` and from a builtin."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = [
    "CertificateError",
    "DataError",
    "DivergenceError",
    "GradientError",
    "MissingPackageError",
    "PactuneError",
    "RankError",
    "RunFolderError",
    "SettingError",
    "warn_user",
]


class PactuneError(Exception):
    """Base of every error that pactune raises on purpose."""


class SettingError(PactuneError, ValueError):
    """A setting breaks its rule; the message names the setting, the rule, the value and the remedy."""


class DataError(PactuneError, ValueError):
    """The data cannot be used: they are empty, of unknown type, or their shapes, types or devices do not fit."""


class CertificateError(PactuneError, ValueError):
    """The theorem of a certificate does not apply, so there is no bound.

    Attributes:
        conditions: every broken condition, in words.
    """

    def __init__(self, conditions: list[str]) -> None:
        super().__init__("no certificate, since a condition is not met: " + "; ".join(conditions))
        self.conditions = conditions


class GradientError(PactuneError, RuntimeError):
    """The chosen estimator cannot compute a gradient, or the gradient is identically zero."""


class MissingPackageError(PactuneError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""


class RunFolderError(PactuneError, RuntimeError):
    """A run folder cannot be used: it belongs to another run or version, is damaged or in use, or the disk is full."""


class RankError(PactuneError, RuntimeError):
    """Another rank of a run on several processes failed, was interrupted, or does not answer in time."""


class DivergenceError(PactuneError, ArithmeticError):
    """Parameters or the objective are not finite.

    Attributes:
        result: the `Result` up to the divergence, `history` included; its status is "diverged".
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


def warn_user(message: str) -> None:
    """Issue a warning that points to the line of the user's code that called pactune."""
    home = str(Path(__file__).parent)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
