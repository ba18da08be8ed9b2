"""The journal of a run: one JSON object per line. Lines are only appended."""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet

from pactune.columns import Row
from pactune.errors import RunFolderError
from pactune.storage.documents import decode_floats, encode_floats, parse_json
from pactune.storage.files import has_content, not_written, open_plain, read_all, read_plain, write_all
from pactune.storage.schema import SchemaError, check_line

__all__ = ["JOURNAL", "BusyError", "Journal", "read_journal", "read_lines", "starts_of"]

JOURNAL = "journal.jsonl"
# Each line ends with a checksum of its content. It finds damage, not deliberate changes.
CHECKSUM = re.compile(rb', "crc": "([0-9a-f]{8})"}$')
logger = logging.getLogger(__name__)


class BusyError(RunFolderError):
    """Another process has the journal open."""


class Journal:
    """A journal that is open for appending and locked against other processes.

    On opening, an incomplete last line of a killed process is removed. A process that is forked while the journal is
    open, such as a worker of a `DataLoader`, closes it at once: the worker can outlive a killed run and would keep the
    lock.

    Args:
        folder: the run folder; it must exist.

    Raises:
        RunFolderError: the journal cannot be opened or written, is no plain file, or is open in another process.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self._file = open_plain(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        _OPEN.add(self)
        try:
            _lock(self._file, self.path)
            self._drop_incomplete_line()
        except BaseException:
            self.close()
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
            RunFolderError: the line cannot be written; the lines before it are intact.
        """
        self.extend([{"kind": kind, **fields}])

    def extend(self, rows: Iterable[Row], *, sync: bool = True) -> None:
        """Add several lines at once, each with its `kind`; with `sync`, wait until all lines are on the disk."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        data = b"".join(_line({"kind": row["kind"], "time": now, **row}) for row in rows)
        try:
            before = os.fstat(self._file).st_size
        except OSError as error:
            raise RunFolderError(f"{self.path} is closed") from error
        try:
            write_all(self._file, data)
            if sync:
                os.fsync(self._file)
        except OSError as error:
            self._truncate(before)
            raise not_written(self.path, error, "resume") from error

    def close(self) -> None:
        """Close the file, which releases its lock."""
        _OPEN.discard(self)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _drop_incomplete_line(self) -> None:
        data = read_all(self._file)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            logger.warning("%s: the last line is torn and is dropped", self.path)
            self._truncate(whole)

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._file, size)
        except OSError:
            logger.warning("%s: a torn last line cannot be removed", self.path)


_OPEN: WeakSet[Journal] = WeakSet()


def _close_in_child() -> None:
    """Close all journals in a forked process; they stay open and locked in the parent."""
    for journal in list(_OPEN):
        journal.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def read_journal(folder: Path | str) -> list[Row]:
    """Return the lines of a run folder's journal. A damaged line is left out with a logged warning.

    Raises:
        RunFolderError: there is no journal, or it is no plain file.
    """
    path = Path(folder) / JOURNAL
    lines = read_plain(path).split(b"\n")
    rows = [(number, _parsed(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    for number, row in rows:
        if row is None:
            logger.warning("%s: line %d is damaged and is left out", path, number)
    return [row for _, row in rows if row is not None]


def read_lines(folder: Path | str) -> list[Row]:
    """Return the valid lines of a journal; an empty list if there is no journal yet.

    pactune itself reads journals through this function. A line that breaks the rules of its kind is left out with a
    logged warning, like a damaged one.
    """
    path = Path(folder) / JOURNAL
    if not has_content(path):
        return []
    found = []
    for line in read_journal(folder):
        try:
            check_line(line)
        except SchemaError as error:
            logger.warning("%s: a line is left out: %s", path, error)
        else:
            found.append(line)
    return found


def starts_of(lines: Iterable[Row]) -> list[Row]:
    """Return the "start" lines that have settings and versions."""
    return [line for line in lines if line["kind"] == "start" and {"settings", "versions"} <= line.keys()]


def _line(row: Row) -> bytes:
    """Return a line of the journal with its checksum."""
    text = json.dumps(encode_floats(row), allow_nan=False, ensure_ascii=False).encode()
    return text[:-1] + f', "crc": "{zlib.crc32(text):08x}"}}\n'.encode()


def _parsed(line: bytes) -> Row | None:
    """Return a line as a row; None if it is damaged. A line without a checksum is accepted."""
    found = CHECKSUM.search(line)
    if found is not None:
        line = line[: found.start()] + b"}"
        if f"{zlib.crc32(line):08x}".encode() != found[1]:
            return None
    try:
        row = decode_floats(parse_json(line))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("kind"), str) else None


def _lock(descriptor: int, path: Path) -> None:
    """Lock a file until it is closed or the process ends; do nothing on systems without such locks."""
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
