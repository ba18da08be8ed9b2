"""Writing files so that a machine may stop, or a disk fill up, at any moment."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pactune.errors import RunFolderError

__all__ = ["BINARY", "PARTIAL", "write_all", "write_atomically"]

PARTIAL = ".partial"  # suffix of a file that is being written
BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would else change line ends

logger = logging.getLogger(__name__)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that, whenever the machine stops, either the old or the new content is there.

    Raises:
        RunFolderError: it cannot be written, for instance because the disk is full.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        _write_and_sync(partial, data)
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        _discard(partial)
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}; what was written before is intact, so make room "
            "and resume"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make sure that a new name in a folder survives a power failure."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; the system may take fewer at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _write_and_sync(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o644)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        logger.warning("%s is left half written and cannot be removed", path.name)
