"""A folder per run: an append-only journal, the results as JSON, and whatever is drawn from them."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pactune import __version__

__all__ = ["RunFolder"]

_PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas")


class RunFolder:
    """Folder with `journal.jsonl` (one JSON object per line, only ever appended to) and `results.json`.

    Args:
        folder: where; made if it does not exist. A second run in the same folder goes on in the same journal.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def journal(self) -> Path:
        """Path of the journal."""
        return self.folder / "journal.jsonl"

    def append(self, kind: str, **fields: Any) -> None:
        """Add one row to the journal."""
        row = {"kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds"), **fields}
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    @contextmanager
    def run(self, name: str, settings: dict[str, Any]) -> Iterator[None]:
        """Write the start of a run and how it ended: "done", "interrupted", or "failed" with the error."""
        versions = {package: version(package) for package in _PACKAGES}
        versions |= {"pactune": __version__, "python": platform.python_version()}
        self.append("start", name=name, settings=settings, versions=versions)
        try:
            yield
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.append("end", status=status, error=f"{type(error).__name__}: {error}")
            raise
        self.append("end", status="done")

    def write_results(self, results: dict[str, Any]) -> Path:
        """Write `results.json`, replacing that of an earlier run."""
        path = self.folder / "results.json"
        path.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return path
