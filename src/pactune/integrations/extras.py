"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from pactune.errors import PactuneError

__all__ = ["MissingPackageError", "needed"]


class MissingPackageError(PactuneError, ImportError):
    """An optional package is not installed; the message says which extra brings it."""


def needed(module: str, *, extra: str) -> Any:
    """Return an optional module.

    Raises:
        MissingPackageError: it is not installed.

    Example:
        >>> needed("math", extra="none").sqrt(4.0)
        2.0
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"{module} is not installed: pip install 'pactune[{extra}]'") from error
