"""Importing optional packages where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from pactune.errors import PactuneError

__all__ = ["MissingPackageError", "import_extra"]


class MissingPackageError(PactuneError, ImportError):
    """An optional package is not installed; the message says which extra brings it."""


def import_extra(module: str, *, extra: str) -> Any:
    """Import and return an optional module.

    Raises:
        MissingPackageError: it is not installed.

    Example:
        >>> import_extra("math", extra="none").sqrt(4.0)
        2.0
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"{module} is not installed: pip install 'pactune[{extra}]'") from error
