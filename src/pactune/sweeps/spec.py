"""A sweep written down as a TOML file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pactune.errors import SettingError
from pactune.sweeps.cluster import load_ray

__all__ = ["Spec", "read_spec"]

KEYS: dict[str, tuple[str, ...]] = {
    "": ("build", "grid", "fit", "resources"),
    "fit": ("outer_steps", "test", "keep", "tolerance", "plain_steps"),
    "resources": ("cpus", "gpus", "retries"),
}


@dataclass(frozen=True)
class Spec:
    """The arguments of `sweep` that a file may give.

    Attributes:
        build: makes a tuner from the values of a cell.
        grid: values by name.
        settings: the other arguments.
    """

    build: Callable[..., Any]
    grid: dict[str, Any]
    settings: dict[str, Any]


def read_spec(path: Path) -> Spec:
    """Read the file of a sweep.

        build = "digits.py:build"      # or "package.module:function"

        [grid]
        zeta = [0.0, 1e-5]
        seed = [0, 1, 2]

        [fit]
        outer_steps = 20
        test = "digits.py:test_set"    # a function without arguments; may be left out

        [resources]
        gpus = 0.25

    A file is looked for beside this one, and so is a module that is not installed.

    Raises:
        SettingError: the file is no TOML, has unknown keys or lacks some, or names what is not there.
    """
    document = _parsed(path)
    for table, known in KEYS.items():
        held = document if not table else document.get(table, {})
        if not isinstance(held, dict):
            raise SettingError(f"{path.name}: `{table}` must be a table, written [{table}], got {held!r}")
        unknown = [key for key in held if key not in known]
        if unknown:
            place = f" in [{table}]" if table else ""
            raise SettingError(f"{path.name}: unknown key `{unknown[0]}`{place}; known are {', '.join(known)}")
    fit, finder = dict(document.get("fit", {})), _Finder(path)
    missing = [key for key in ("build", "grid") if key not in document]
    missing += [] if "outer_steps" in fit else ["outer_steps in [fit]"]
    if missing:
        raise SettingError(f"{path.name} lacks {' and '.join(missing)}")
    if "test" in fit:
        fit["test"] = finder.called(fit["test"])
    return Spec(finder.found("build", document["build"]), document["grid"], {**fit, **document.get("resources", {})})


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # of the decoder and of the parser
        raise SettingError(f"{path.name} is no valid TOML: {error}") from error


class _Finder:
    """Finds functions by "file.py:name" or "module:name"; each file is run once."""

    def __init__(self, spec: Path) -> None:
        self._spec = spec
        self._loaded: dict[str, ModuleType] = {}

    def called(self, text: object) -> Any:
        """Return what the function without arguments returns."""
        function = self.found("test", text)
        try:
            return function()
        except Exception as error:  # it is the user's code
            raise SettingError(f"`test` = {text!r} fails: {type(error).__name__}: {error}") from error

    def found(self, key: str, text: object) -> Callable[..., Any]:
        """Return the function."""
        place, colon, name = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        if not (place and colon and name.isidentifier()):
            raise SettingError(
                f'{self._spec.name}: `{key}` must be "file.py:function" or "module:function", got {text!r}'
            )
        if place not in self._loaded:
            self._loaded[place] = self._load(key, place)
        function = getattr(self._loaded[place], name, None)
        if not callable(function):
            raise SettingError(f"`{key}` = {text!r}: {place} has no function {name!r}")
        result: Callable[..., Any] = function
        return result

    def _load(self, key: str, place: str) -> ModuleType:
        folder = str(self._spec.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        file = self._spec.parent / place
        if place.endswith(".py") and not file.is_file():
            raise SettingError(f"`{key}`: there is no file {file}")
        try:
            return _run_file(file) if place.endswith(".py") else importlib.import_module(place)
        except Exception as error:  # it is the user's code
            raise SettingError(f"`{key}`: {place} cannot be imported: {type(error).__name__}: {error}") from error


def _run_file(file: Path) -> ModuleType:
    """Import a file that workers need not have: what it defines travels by value."""
    name = f"pactune_sweep_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    load_ray().cloudpickle.register_pickle_by_value(module)
    return module
