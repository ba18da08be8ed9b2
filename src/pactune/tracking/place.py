"""Where a run may be written, checked before hours of work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pactune.checks import shown
from pactune.errors import RunFolderError, SettingError

__all__ = ["as_folder"]


def as_folder(name: str, value: object, *, none: bool = False) -> Path:
    """Return the folder of a run, which exists or can be made.

    Args:
        name: the argument.
        value: what was given.
        none: whether the argument may be None, for the message.

    Raises:
        SettingError: it is no path.
        RunFolderError: the system does not take it: too long, a file in the way, no permission.
    """
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes) or not os.fspath(value):
        raise SettingError(f"`{name}` must be a path{' or None' if none else ''}, got {shown(value)}")
    folder = Path(os.fspath(value))
    if "\0" in str(folder):
        raise SettingError(f"`{name}` must not hold a null character, got {shown(value)}")
    try:
        home = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place) or _reads(place))
        if not home.is_dir():
            raise FileExistsError(errno.EEXIST, "File exists")
        if not os.access(home, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"no permission to write in {home}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"`{name}` {shown(str(folder))} cannot be made: {reason}; choose another path") from error
    return folder


def _reads(place: Path) -> bool:
    """Return whether a path exists; raise where the system cannot tell."""
    try:
        place.stat()
    except FileNotFoundError:
        return False
    return True
