"""Files of run folders: they are written atomically, and only plain files are read or written.

A run folder may come from an untrusted source. The folder that the user names may be a link, but nothing inside it may
be one. A link, a FIFO, a socket, a device or a folder in place of a file is refused. A file that has a second name (a
hard link) is not written to.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
from pathlib import Path

from pactune.checks import shown
from pactune.errors import RunFolderError, SettingError

__all__ = [
    "PARTIAL",
    "as_folder",
    "as_path",
    "check_name",
    "check_plain",
    "folder_inside",
    "has_content",
    "make_folder",
    "not_written",
    "open_plain",
    "read_all",
    "read_plain",
    "remove_partial",
    "write_all",
    "write_atomically",
]

PARTIAL = ".partial"  # suffix of a file that is being written
LONGEST = 200  # bytes of a name; most systems allow 255, and suffixes are added
BLOCK = 1 << 20  # bytes that are read at a time
NAME = re.compile(r"[\w=,.+\-() ]+")
BINARY: int = getattr(os, "O_BINARY", 0)  # without it Windows changes line ends
# Do not follow a link, and do not wait for the other end of a FIFO; Windows has neither flag.
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
    """Open a plain file and return its descriptor; with `os.O_CREAT` a missing file is created.

    Raises:
        RunFolderError: the file cannot be opened, is not plain, or is opened for writing and has a second name.
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
    """Check that a path is a plain file or does not exist.

    Raises:
        RunFolderError: the path is a link, FIFO, socket, device or folder.
        OSError: the system cannot look the path up.
    """
    try:
        _check_kind(path, os.lstat(path))
    except FileNotFoundError:
        return


def read_plain(path: Path, *, most: int | None = None) -> bytes:
    """Return the content of a plain file, or its first bytes.

    Args:
        path: the file.
        most: how many bytes to read; None reads all.

    Raises:
        RunFolderError: the file cannot be read or is not plain.
    """
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        return read_all(descriptor) if most is None else os.read(descriptor, most)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {_reason(error)}") from error
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """Return the content of an open file from its present position to its end."""
    parts = []
    while part := os.read(descriptor, BLOCK):
        parts.append(part)
    return b"".join(parts)


def has_content(path: Path) -> bool:
    """Return True if the path exists and is not an empty file.

    Raises:
        RunFolderError: the system cannot look the path up, for instance because its name is too long.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {_reason(error)}") from error
    return not stat.S_ISREG(found.st_mode) or found.st_size > 0


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: if the machine stops, the file has either its old or its new content.

    The content is written to a new file with a unique name, which then replaces the old file. Nothing is written
    through a link, and a second name (hard link) of the old file keeps the old content.

    Raises:
        RunFolderError: the file cannot be written, for instance because the disk is full, or because the path is no
            plain file.
    """
    partial = path.parent / f"{path.name}.{secrets.token_hex(4)}{PARTIAL}"
    try:
        check_plain(path)
        _write_and_sync(partial, data)
        os.replace(partial, path)
        _sync_folder(path.parent)
    except (OSError, ValueError) as error:
        remove_partial(partial)
        raise not_written(path, error, "try again") from error


def not_written(path: Path, error: Exception, then: str) -> RunFolderError:
    """Return the error for a file that cannot be written; if the disk is full, it says to make room, and `then`."""
    remedy = f", so make room and {then}" if getattr(error, "errno", None) == errno.ENOSPC else ""
    return RunFolderError(f"{path} cannot be written: {_reason(error)}; what was written before is intact{remedy}")


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; one call of `os.write` may write fewer."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_partial(path: Path) -> None:
    """Remove a partially written file; of a link, remove only the link."""
    try:
        path.unlink(missing_ok=True)
    except (OSError, ValueError):
        logger.warning("%s is left half written and cannot be removed", path.name)


def as_path(name: str, value: object, *, none: bool = False) -> Path:
    """Return an argument as a path; `none` says in the message that the argument may also be None.

    Raises:
        SettingError: the value is no path.
    """
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes) or not os.fspath(value):
        raise SettingError(f"`{name}` must be a path{' or None' if none else ''}, got {shown(value)}")
    if "\0" in os.fspath(value):
        raise SettingError(f"`{name}` must not hold a null character, got {shown(value)}")
    return Path(os.fspath(value))


def as_folder(name: str, value: object, *, none: bool = False) -> Path:
    """Return a path for a run folder; check before a long run that the folder exists or can be made.

    Args:
        name: the name of the argument.
        value: the value of the argument.
        none: True if the argument may be None, for the message.

    Raises:
        SettingError: the value is no path.
        RunFolderError: the folder cannot be made: the path is too long, contains a file, or there is no permission.
    """
    folder = as_path(name, value, none=none)
    try:
        home = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path) or _exists(path))
        if not home.is_dir():
            raise FileExistsError(errno.EEXIST, "File exists")
        if not os.access(home, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"no permission to write in {home}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"`{name}` {shown(str(folder))} cannot be made: {reason}; choose another path") from error
    return folder


def make_folder(folder: Path, what: str = "`run_dir`") -> None:
    """Make a folder if it does not exist.

    Raises:
        RunFolderError: the folder cannot be made; `what` names the setting.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{what} {folder} cannot be made: {_reason(error)}") from error


def folder_inside(root: Path, *names: str) -> Path:
    """Return the path of a sub-folder that pactune names itself.

    Raises:
        RunFolderError: a name is not allowed, or the sub-folder is a link.
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
    """Return a name if it is safe for one file or folder: letters, digits, spaces and `= , . + - _ ( )`.

    >>> check_name("zeta=1e-06,seed=0")
    'zeta=1e-06,seed=0'

    Raises:
        RunFolderError: the name is not safe, for instance a path such as "../x".
    """
    safe = isinstance(name, str) and NAME.fullmatch(name) is not None and not name.startswith((".", " "))
    if not safe or len(str(name).encode()) > LONGEST:
        raise RunFolderError(
            "a name in a run folder must be letters, digits, spaces and `= , . + - _ ( )`, not begin with a dot or a "
            f"space, and have at most {LONGEST} bytes, got {str(name)[:80]!r}"
        )
    return str(name)


def _exists(path: Path) -> bool:
    """Return True if a path exists; raise if the system cannot look it up."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _check_kind(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no plain file")
        raise RunFolderError(f"{path} cannot be used: it is {kind}, and must be a plain file; remove it")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power failure."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_and_sync(path: Path, data: bytes) -> None:
    """Write a new file; an existing file is never opened."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | GUARDED, 0o644)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
