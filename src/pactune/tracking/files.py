"""Files of run folders: written whole or not at all, and only ever plain files.

A run folder may come from a stranger, and everything in it may be a trap. The folder that the user names may be a link,
nothing inside it may be one. A link, a FIFO, a socket, a device or a folder where a file should be is refused. So is a
file with a second name (a hard link) that would be written into.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
from pathlib import Path

from pactune.errors import RunFolderError

__all__ = [
    "PARTIAL",
    "check_name",
    "check_plain",
    "folder_inside",
    "has_content",
    "make_folder",
    "open_plain",
    "read_all",
    "read_plain",
    "remove_partial",
    "write_all",
    "write_atomically",
]

PARTIAL = ".partial"  # suffix of a file that is being written
LONGEST = 200  # bytes of a name; most systems take 255, and suffixes are added
BLOCK = 1 << 20  # bytes that are read at a time
NAME = re.compile(r"[\w=,.+\-() ]+")
BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would else change line ends
# Never through a link, and never waiting for the other end of a FIFO; Windows has neither flag.
GUARDED: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | BINARY
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

logger = logging.getLogger(__name__)


def open_plain(path: Path, flags: int) -> int:
    """Open a plain file and return its descriptor; with `os.O_CREAT` it is made where there is none.

    Raises:
        RunFolderError: the file cannot be opened, is not plain, or is to be written and has a second name.
    """
    verb = "opened" if flags & (os.O_WRONLY | os.O_RDWR) else "read"
    try:
        check_plain(path)
        descriptor = os.open(path, flags | GUARDED, 0o644)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be {verb}: {_reason(error)}") from error
    try:
        found = os.fstat(descriptor)
        _check_kind(path, found)
        if verb == "opened" and found.st_nlink > 1:
            raise RunFolderError(
                f"{path} is a hard link: the same file has {found.st_nlink} names, and writing would change it under "
                "all of them; put a copy in its place"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_plain(path: Path) -> None:
    """Check that a path leads to a plain file, or to nothing yet.

    Raises:
        RunFolderError: it is a link, FIFO, socket, device or folder.
        OSError: it cannot be looked at.
    """
    try:
        _check_kind(path, os.lstat(path))
    except FileNotFoundError:
        return


def read_plain(path: Path) -> bytes:
    """Return the content of a plain file.

    Raises:
        RunFolderError: it cannot be read or is not plain.
    """
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        return read_all(descriptor)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {_reason(error)}") from error
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """Return what an open file holds from its present position on."""
    parts = []
    while part := os.read(descriptor, BLOCK):
        parts.append(part)
    return b"".join(parts)


def has_content(path: Path) -> bool:
    """Tell whether something is there that is no empty file.

    Raises:
        RunFolderError: the path cannot be looked at, because its name is too long for instance.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {_reason(error)}") from error
    return not stat.S_ISREG(found.st_mode) or found.st_size > 0


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that, whenever the machine stops, either the old or the new content is there.

    The content goes to a new file of a name that nobody else uses, which then takes the place of the old one. Nothing
    is ever written through a link, and a second name of the old file keeps the old content.

    Raises:
        RunFolderError: it cannot be written, for instance because the disk is full, or because something that is no
            plain file is in its place.
    """
    partial = path.parent / f"{path.name}.{secrets.token_hex(4)}{PARTIAL}"
    try:
        check_plain(path)
        _write_and_sync(partial, data)
        os.replace(partial, path)
        _sync_folder(path.parent)
    except (OSError, ValueError) as error:
        remove_partial(partial)
        raise RunFolderError(
            f"{path} cannot be written: {_reason(error)}; what was written before is intact, so make room and resume"
        ) from error


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; the system may take fewer at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_partial(path: Path) -> None:
    """Remove a file that was left half written; of a link only the link."""
    try:
        path.unlink(missing_ok=True)
    except (OSError, ValueError):
        logger.warning("%s is left half written and cannot be removed", path.name)


def make_folder(folder: Path, what: str = "`run_dir`") -> None:
    """Make a folder where there is none.

    Raises:
        RunFolderError: it cannot be made; `what` names the setting.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{what} {folder} cannot be made: {_reason(error)}") from error


def folder_inside(root: Path, *names: str) -> Path:
    """Return the path of a folder in a run folder, which pactune names.

    Raises:
        RunFolderError: a name is not that of a folder, or leads elsewhere by a link.
    """
    for name in names:
        root = root / check_name(name)
        try:
            linked = root.is_symlink()
        except OSError as error:
            raise RunFolderError(f"{root} cannot be read: {_reason(error)}") from error
        if linked:
            raise RunFolderError(
                f"{root} is a link, and nothing is written through a link inside a run folder; "
                "put the folder itself in its place"
            )
    return root


def check_name(name: object) -> str:
    """Return a name that is safe as that of one file or folder: letters, digits, spaces and `= , . + - _ ( )`.

    >>> check_name("zeta=1e-06,seed=0")
    'zeta=1e-06,seed=0'

    Raises:
        RunFolderError: it is none; a path such as "../x" for instance.
    """
    safe = isinstance(name, str) and NAME.fullmatch(name) is not None and not name.startswith((".", " "))
    if not safe or len(str(name).encode()) > LONGEST:
        raise RunFolderError(
            "a name in a run folder must be letters, digits, spaces and `= , . + - _ ( )`, not begin with a dot or a "
            f"space, and have at most {LONGEST} bytes, got {str(name)[:80]!r}"
        )
    return str(name)


def _check_kind(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no plain file")
        raise RunFolderError(f"{path} cannot be used: it is {kind}, and must be a plain file; remove it")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _sync_folder(folder: Path) -> None:
    """Make sure that a new name in a folder survives a power failure."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_and_sync(path: Path, data: bytes) -> None:
    """Write a new file; one that exists already is never opened."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | GUARDED, 0o644)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
