"""The folder of a study: an append-only journal, the results as JSON, and figures."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pactune import __version__
from pactune.storage.files import as_folder, make_folder, write_atomically
from pactune.tracking.journal import JOURNAL, Journal

__all__ = ["RunFolder", "versions_of"]

_PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas")


class RunFolder:
    """Folder with `journal.jsonl` and `results.json`.

    Args:
        folder: the path; it is made if it does not exist. A second run in the same folder uses the same journal.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = as_folder("folder", folder)
        make_folder(self.folder, "the run folder")

    @property
    def journal(self) -> Path:
        """Path of the journal."""
        return self.folder / JOURNAL

    def append(self, kind: str, **fields: Any) -> None:
        """Add one row to the journal."""
        with Journal(self.folder) as journal:
            journal.append(kind, **fields)

    @contextmanager
    def run(self, name: str, settings: dict[str, Any]) -> Iterator[None]:
        """Write the start and the end of a run: "done", "interrupted", or "failed" with the error."""
        self.append("start", name=name, settings=settings, versions=versions_of(*_PACKAGES))
        try:
            yield
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.append("end", status=status, error=f"{type(error).__name__}: {error}")
            raise
        self.append("end", status="done")

    def write_results(self, results: dict[str, Any]) -> Path:
        """Write `results.json`; the file of an earlier run is replaced."""
        path = self.folder / "results.json"
        write_atomically(path, (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
        return path


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of packages, of pactune and of Python."""
    found = {"pactune": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
