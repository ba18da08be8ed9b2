"""The journal of a run: one JSON object per line, only ever appended to."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from pactune.errors import RunFolderError
from pactune.tracking.files import BINARY, write_all

__all__ = ["JOURNAL", "BusyError", "Journal", "Row", "read_journal"]

JOURNAL = "journal.jsonl"
Row = dict[str, Any]

logger = logging.getLogger(__name__)


class BusyError(RunFolderError):
    """Another process has the journal open."""


class Journal:
    """A journal that is open for appending; no other process can open it meanwhile.

    A last line that a killed process left unfinished is removed on opening.

    Args:
        folder: of the run; it must exist.

    Raises:
        RunFolderError: it cannot be opened or written, or another process has it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, 0o644)
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be opened: {error.strerror or error}") from error
        try:
            _lock(self._file, self.path)
            self._drop_torn_line()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, kind: str, **fields: Any) -> None:
        """Add one line and wait until it is on the disk.

        Raises:
            RunFolderError: it cannot be written; the lines before it are intact.
        """
        self.extend([{"kind": kind, **fields}])

    def extend(self, rows: Iterable[Row]) -> None:
        """Add several lines at once, each with its `kind`."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [{"kind": row["kind"], "time": now, **row} for row in rows]
        texts = [json.dumps(_marked(line), allow_nan=False, ensure_ascii=False) + "\n" for line in lines]
        data = "".join(texts).encode()
        before = os.fstat(self._file).st_size
        try:
            write_all(self._file, data)
            os.fsync(self._file)
        except OSError as error:
            self._truncate(before)
            raise RunFolderError(
                f"{self.path} cannot be written: {error.strerror or error}; what was written before is intact, so "
                "make room and resume"
            ) from error

    def close(self) -> None:
        """Close the file and let others open it."""
        os.close(self._file)

    def _drop_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            logger.warning("%s: the last line is torn and is dropped", self.path)
            self._truncate(whole)

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._file, size)
        except OSError:
            logger.warning("%s: a torn last line cannot be removed", self.path)


def read_journal(folder: Path | str) -> list[Row]:
    """Return the lines of a run folder's journal; a line that is torn or damaged is left out, with a logged warning.

    Raises:
        RunFolderError: there is no journal.
    """
    path = Path(folder) / JOURNAL
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    rows = [(number, _parsed(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    for number, row in rows:
        if row is None:
            logger.warning("%s: line %d is damaged and is left out", path, number)
    return [row for _, row in rows if row is not None]


def _parsed(line: bytes) -> Row | None:
    try:
        row = json.loads(line, object_hook=_unmarked)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "kind" in row else None


def _marked(value: Any) -> Any:
    """JSON has neither infinity nor NaN: {"$float": "inf"} stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(float(value))}
    if isinstance(value, dict):
        return {key: _marked(part) for key, part in value.items()}
    return [_marked(part) for part in value] if isinstance(value, (list, tuple)) else value


def _unmarked(value: dict[str, Any]) -> Any:
    return float(value["$float"]) if set(value) == {"$float"} else value


def _lock(descriptor: int, path: Path) -> None:
    """Lock a file until it is closed or the process ends; where the system cannot, do without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(f"{path} is in use by another run; wait for it, or choose another folder") from error
    except OSError as error:
        logger.warning("%s cannot be locked: %s", path, error)
