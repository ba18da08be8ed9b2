"""Paths that a user names on the command line: equal mistakes get equal sentences, before anything slow begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pactune.errors import RunFolderError, SettingError
from pactune.storage.files import as_folder

__all__ = ["input_file", "input_folder", "output_file", "output_folder"]

SHOWN = 200  # characters of a path in a message


def input_file(path: Path, what: str, suffixes: Sequence[str] = ()) -> Path:
    """Return the path of a file to read.

    Args:
        path: the path.
        what: the word for the file in the message, such as "a table".
        suffixes: the suffixes that it may have, in lower case; none means any.

    Raises:
        SettingError: there is no such file, it is a folder, or its suffix is wrong.
    """
    if not _is(path, "exists"):
        raise SettingError(f"there is no file {_shown(path)}")
    if _is(path, "is_dir"):
        raise SettingError(f"{_shown(path)} is a folder, not a file")
    if suffixes and path.suffix.lower() not in suffixes:
        raise SettingError(f"{what} must be a {' or '.join(suffixes)} file, got {path.name}")
    return path


def input_folder(path: Path) -> Path:
    """Return the path of a folder to read.

    Raises:
        SettingError: there is no such folder, or it is a file.
    """
    if not _is(path, "exists"):
        raise SettingError(f"there is no folder {_shown(path)}")
    if not _is(path, "is_dir"):
        raise SettingError(f"{_shown(path)} is a file, not a folder")
    return path


def output_folder(path: Path) -> Path:
    """Return the path of a folder to write to, which exists or can be made.

    Raises:
        SettingError: the folder cannot be made or written.
    """
    return _writable(path, path, "folder")


def output_file(path: Path) -> Path:
    """Return the path of a file to write, whose folder exists or can be made.

    Raises:
        SettingError: the file cannot be written.
    """
    if _is(path, "is_dir"):
        raise SettingError(f"`--output` must be a file that can be written, got {_shown(path)}: it is a folder")
    return _writable(path, path.absolute().parent, "file")


def _writable(path: Path, folder: Path, kind: str) -> Path:
    try:
        as_folder("--output", folder)
    except (RunFolderError, SettingError) as error:
        cause = error.__cause__ or error
        reason = "a part of the path is a file" if isinstance(cause, (FileExistsError, NotADirectoryError)) else cause
        raise SettingError(
            f"`--output` must be a {kind} that can be written, got {_shown(path)}: "
            f"{getattr(reason, 'strerror', None) or reason}"
        ) from error
    return path


def _is(path: Path, test: str) -> bool:
    """Return the answer of a method of `Path`; a path that the system refuses, such as too long a one, is nothing."""
    try:
        return bool(getattr(path, test)())
    except (OSError, ValueError):
        return False


def _shown(path: Path) -> str:
    return str(path)[:SHOWN]
