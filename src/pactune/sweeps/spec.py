"""Specs: TOML files that describe a sweep.

A spec names functions, and a sweep runs them. A spec may therefore name only functions of files in its own folder, and
of modules that the user allows: on the command line with `--allow`, or as `read_spec(path, allow=[…])`.
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
    "fit": ("outer_steps", "test", "keep", "tolerance", "plain_steps", "evaluate_every"),
    "resources": ("cpus", "gpus", "retries"),
}


@dataclass(frozen=True)
class Spec:
    """The arguments of `sweep` that a TOML file gives.

    Attributes:
        build: `build(**cell)` returns a `Tuner`.
        grid: lists of values by the arguments of `build`.
        settings: the other arguments of `sweep`.
    """

    build: Callable[..., Any]
    grid: dict[str, Any]
    settings: dict[str, Any]


def read_spec(path: Path, allow: Sequence[str] = ()) -> Spec:
    """Read a spec. This runs code: it imports the files that `build` and `test` name, and it calls `test`.

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
        allow: modules and packages outside the folder of the spec whose functions it may name. No other module outside
            that folder is imported, even if it is installed.

    Raises:
        SettingError: the file is no TOML, has unknown keys or lacks some, names a function that does not exist, or
            names a function that is neither in its own folder nor allowed.
    """
    document = _parse_toml(path)
    _check_keys(path, document)
    fit, loader = dict(document.get("fit", {})), _FunctionLoader(path, allow)
    if "test" in fit:
        fit["test"] = loader.call(fit["test"])
    return Spec(loader.load("build", document["build"]), document["grid"], {**fit, **document.get("resources", {})})


def _check_keys(path: Path, document: dict[str, Any]) -> None:
    """Raise if the document has an unknown key, or lacks one that a sweep needs."""
    for table, known in KEYS.items():
        content = document if not table else document.get(table, {})
        if not isinstance(content, dict):
            raise SettingError(f"{path.name}: `{table}` must be a table, written [{table}], got {content!r}")
        unknown = [key for key in content if key not in known]
        if unknown:
            where = f" in [{table}]" if table else ""
            raise SettingError(f"{path.name}: unknown key `{unknown[0]}`{where}; known are {', '.join(known)}")
    missing = [key for key in ("build", "grid") if key not in document]
    missing += [] if "outer_steps" in document.get("fit", {}) else ["outer_steps in [fit]"]
    if missing:
        raise SettingError(f"{path.name} lacks {' and '.join(missing)}")


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot read {path.name}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # from the decoder and the parser
        raise SettingError(f"cannot read {path.name}: it is no valid TOML: {error}") from error


class _FunctionLoader:
    """Loads functions by "file.py:name" or "module:name"; it runs each file once.

    Args:
        spec: the path of the spec. Files are looked up in its folder.
        allow: modules outside that folder from which functions may come.

    Raises:
        SettingError: `allow` is no list of names.
    """

    def __init__(self, spec: Path, allow: Sequence[str]) -> None:
        if isinstance(allow, str) or not all(isinstance(name, str) and name for name in allow):
            raise SettingError(f"`allow` must be a list of names of modules, got {allow!r}")
        self._spec, self._folder, self._allow = spec, spec.resolve().parent, tuple(allow)
        self._modules: dict[str, ModuleType] = {}

    def call(self, text: object) -> Any:
        """Call the function of the key `test` without arguments and return its value."""
        function = self.load("test", text)
        try:
            return function()
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise SettingError(f"`test` = {text!r} fails: {type(error).__name__}: {error}") from error

    def load(self, key: str, text: object) -> Callable[..., Any]:
        """Return the function that a key of the spec names.

        Args:
            key: of the spec, for messages.
            text: the name, "file.py:function" or "module:function".

        Raises:
            SettingError: the name has another form, there is no such function, or it is neither in the folder of the
                spec nor allowed.
        """
        source, colon, name = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        if not (source and colon and name.isidentifier()):
            raise SettingError(
                f'{self._spec.name}: `{key}` must be "file.py:function" or "module:function", got {text!r}'
            )
        if source not in self._modules:
            self._modules[source] = self._import(key, source)
        function = vars(self._modules[source]).get(name)
        if not callable(function):
            raise SettingError(f"`{key}` = {text!r}: {source} has no function {name!r}")
        if not self._is_allowed(source):
            self._check_origin(key, text, function)
        result: Callable[..., Any] = function
        return result

    def _import(self, key: str, source: str) -> ModuleType:
        file = None if self._is_allowed(source) else self._find_file(key, source)
        if file is not None and str(self._folder) not in sys.path:
            sys.path.insert(0, str(self._folder))
        try:
            return _import_file(file) if file and source.endswith(".py") else importlib.import_module(source)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise SettingError(f"`{key}`: {source} cannot be imported: {type(error).__name__}: {error}") from error

    def _find_file(self, key: str, source: str) -> Path:
        """Return the file of a source in the folder of the spec, without importing anything.

        Raises:
            SettingError: there is no such file, or Python would import a module from elsewhere.
        """
        is_file = source.endswith(".py")
        candidates = [self._folder / source] if is_file else self._module_files(key, source)
        found = next((file for file in candidates if os.path.isfile(file)), None)  # takes names that Path refuses
        if found is None and is_file:
            raise SettingError(f"`{key}`: there is no file {self._spec.parent / source}")
        if found is None and not _is_installed(source.partition(".")[0]):
            raise SettingError(f"`{key}`: {source} cannot be imported: ModuleNotFoundError: there is no such module")
        shadowed = not is_file and self._is_shadowed(source)
        if found is None or shadowed or not found.resolve().is_relative_to(self._folder):
            raise SettingError(self._refusal(key, source))
        return found

    def _module_files(self, key: str, source: str) -> list[Path]:
        """Return the two files in the folder of the spec that a module or package of this name may have."""
        parts = source.split(".")
        if not all(part.isidentifier() for part in parts):
            raise SettingError(f"`{key}`: {source!r} is not the name of a module")
        stem = self._folder.joinpath(*parts)
        return [stem / "__init__.py", stem.with_name(f"{stem.name}.py")]

    def _is_shadowed(self, source: str) -> bool:
        """Return True if Python would import another module of this name, such as one of the standard library."""
        top = source.partition(".")[0]
        loaded = sys.modules.get(top)
        return top in sys.stdlib_module_names if loaded is None else not self._is_inside(loaded)

    def _check_origin(self, key: str, text: object, function: Any) -> None:
        """Raise if a file of the folder only imports the function from elsewhere, such as `os.system`."""
        while isinstance(function, partial):
            function = function.func
        origin = getattr(function, "__module__", None) or type(function).__module__
        modules = [module.__name__ for module in self._modules.values()]
        if origin not in modules and not self._is_inside(sys.modules.get(origin)) and not self._is_allowed(origin):
            raise SettingError(self._refusal(key, f"{text!r} comes from {origin}, which"))

    def _is_inside(self, module: ModuleType | None) -> bool:
        """Return True if a module lies in the folder of the spec. A namespace package has no file, only a path."""
        paths = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        return any(Path(path).resolve().is_relative_to(self._folder) for path in paths if path)

    def _is_allowed(self, module: str) -> bool:
        return any(module == name or module.startswith(f"{name}.") for name in self._allow)

    def _refusal(self, key: str, what: str) -> str:
        return (
            f"{self._spec.name}: `{key}`: {what} is not in the folder of the spec; a spec may name functions of files "
            "beside it only. Name the module with --allow MODULE if you trust it"
        )


def _is_installed(module: str) -> bool:
    """Return True if Python finds a module; it is not imported."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _import_file(file: Path) -> ModuleType:
    """Import a file. Its functions are pickled by value, since the workers may not have the file."""
    name = f"pactune_sweep_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    require("ray").cloudpickle.register_pickle_by_value(module)
    return module
