"""Optional packages: they are imported where they are used, and a missing one is asked for by name."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from pactune.errors import MissingPackageError

__all__ = ["is_installed", "require"]

# Module -> the package that holds it, and the extra of pyproject.toml that installs the package.
EXTRAS = {
    "lightning": ("lightning", "lightning"),
    "matplotlib": ("matplotlib", "plots"),
    "mlflow": ("mlflow", "mlflow"),
    "optuna": ("optuna", "optuna"),
    "pyarrow": ("pyarrow", "parquet"),
    "ray": ("ray", "sweep"),
    "ray.tune": ("ray[tune]", "ray"),
    "rich": ("rich", "cli"),
    "scipy": ("scipy", "bounds"),
    "sklearn": ("scikit-learn", "sklearn"),
    "torch.utils.tensorboard": ("tensorboard", "tensorboard"),
    "typer": ("typer", "cli"),
    "wandb": ("wandb", "wandb"),
}


def require(module: str) -> Any:
    """Import a module of an optional package and return it.

    Call it before a plain import of the same package to keep the types of that import.

    Raises:
        MissingPackageError: the package is not installed. The message has the command that installs it.

    Example:
        >>> require("scipy").__name__
        'scipy'
    """
    package, extra = EXTRAS.get(module) or EXTRAS[module.partition(".")[0]]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        broken = f"cannot be imported ({error})"  # the package is there, and one that it needs is missing or too old
        problem = "is not installed" if isinstance(error, ModuleNotFoundError) else broken
        raise MissingPackageError(f"{package} {problem}: pip install 'pactune[{extra}]'") from error


def is_installed(module: str) -> bool:
    """Return True if an optional package can be found. It is not imported."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # a folder of that name has no origin
