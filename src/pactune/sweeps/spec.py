"""A sweep written down as a TOML file.

A spec names functions, and running a sweep runs them. So a spec may only name functions of files that lie beside it, or
of modules that the user names: on the command line with `--allow`, or as `read_spec(path, allow=[…])`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pactune.errors import SettingError
from pactune.extras import require

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


def read_spec(path: Path, allow: Sequence[str] = ()) -> Spec:
    """Read the file of a sweep. This runs code: the files that `build` and `test` name are imported, `test` is called.

        build = "digits.py:build"      # or "module:function"

        [grid]
        zeta = [0.0, 1e-5]
        seed = [0, 1, 2]

        [fit]
        outer_steps = 20
        test = "digits.py:test_set"    # a function without arguments; may be left out

        [resources]
        gpus = 0.25

    Args:
        path: of the TOML file.
        allow: modules and packages outside the folder of the file from which it may take functions. Nothing else is
            imported from elsewhere, whether it is installed or not.

    Raises:
        SettingError: the file is no TOML, has unknown keys or lacks some, names what is not there, or names a function
            that is neither in its own folder nor allowed.
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
    fit, finder = dict(document.get("fit", {})), _Finder(path, allow)
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
    except (ValueError, RecursionError) as error:  # of the decoder and of the parser
        raise SettingError(f"{path.name} is no valid TOML: {error}") from error


class _Finder:
    """Finds functions by "file.py:name" or "module:name"; each file is run once."""

    def __init__(self, spec: Path, allow: Sequence[str]) -> None:
        if isinstance(allow, str) or not all(isinstance(name, str) and name for name in allow):
            raise SettingError(f"`allow` must be a list of names of modules, got {allow!r}")
        self._spec, self._folder, self._allow = spec, spec.resolve().parent, tuple(allow)
        self._loaded: dict[str, ModuleType] = {}

    def called(self, text: object) -> Any:
        """Return what the function without arguments returns."""
        function = self.found("test", text)
        try:
            return function()
        except (Exception, SystemExit) as error:  # it is the user's code
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
        function = vars(self._loaded[place]).get(name)
        if not callable(function):
            raise SettingError(f"`{key}` = {text!r}: {place} has no function {name!r}")
        if not self._is_allowed(place):
            self._check_home(key, text, function)
        result: Callable[..., Any] = function
        return result

    def _load(self, key: str, place: str) -> ModuleType:
        file = None if self._is_allowed(place) else self._file(key, place)
        if file is not None and str(self._folder) not in sys.path:
            sys.path.insert(0, str(self._folder))
        try:
            return _run_file(file) if file and place.endswith(".py") else importlib.import_module(place)
        except (Exception, SystemExit) as error:  # it is the user's code
            raise SettingError(f"`{key}`: {place} cannot be imported: {type(error).__name__}: {error}") from error

    def _file(self, key: str, place: str) -> Path:
        """Return the file of a place in the folder of the spec; nothing is imported to find it."""
        if place.endswith(".py"):
            candidates = [self._folder / place]
        else:
            parts = place.split(".")
            if not all(part.isidentifier() for part in parts):
                raise SettingError(f"`{key}`: {place!r} is not the name of a module")
            stem = self._folder.joinpath(*parts)
            candidates = [stem / "__init__.py", stem.with_name(f"{stem.name}.py")]
        found = next((file for file in candidates if os.path.isfile(file)), None)  # takes names that Path refuses
        if found is None and place.endswith(".py"):
            raise SettingError(f"`{key}`: there is no file {self._spec.parent / place}")
        if found is None and not _is_installed(place.partition(".")[0]):
            raise SettingError(f"`{key}`: {place} cannot be imported: ModuleNotFoundError: there is no such module")
        named = not place.endswith(".py")
        if found is None or not found.resolve().is_relative_to(self._folder) or (named and self._is_taken(place)):
            raise SettingError(self._refusal(key, place))
        return found

    def _is_taken(self, place: str) -> bool:
        """Tell whether Python would import another module of this name, such as one of its own."""
        top = place.partition(".")[0]
        loaded = sys.modules.get(top)
        return top in sys.stdlib_module_names if loaded is None else not self._is_inside(loaded)

    def _check_home(self, key: str, text: object, function: Any) -> None:
        """Refuse a function that a file of the folder has only imported, as `os.system` may be."""
        while isinstance(function, partial):
            function = function.func
        home = getattr(function, "__module__", None) or type(function).__module__
        modules = [module.__name__ for module in self._loaded.values()]
        if home not in modules and not self._is_inside(sys.modules.get(home)) and not self._is_allowed(home):
            raise SettingError(self._refusal(key, f"{text!r} comes from {home}, which"))

    def _is_inside(self, module: ModuleType | None) -> bool:
        """Tell whether a module, or a package without a file of its own, lies in the folder of the spec."""
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        return any(Path(place).resolve().is_relative_to(self._folder) for place in places if place)

    def _is_allowed(self, module: str) -> bool:
        return any(module == name or module.startswith(f"{name}.") for name in self._allow)

    def _refusal(self, key: str, what: str) -> str:
        return (
            f"{self._spec.name}: `{key}`: {what} is not in the folder of the spec; a spec may name functions of files "
            "beside it only. Name the module with --allow MODULE if you trust it"
        )


def _is_installed(module: str) -> bool:
    """Tell whether Python finds a module, without importing it."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _run_file(file: Path) -> ModuleType:
    """Import a file that workers need not have: what it defines travels by value."""
    name = f"pactune_sweep_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    require("ray").cloudpickle.register_pickle_by_value(module)
    return module
