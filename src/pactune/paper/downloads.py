"""The official MNIST and CIFAR-10 files: finding, verifying and downloading them."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from pactune.errors import DataError
from pactune.storage.files import write_atomically

__all__ = ["CIFAR10", "MNIST", "Archive", "data_home", "ensure_files", "find_files", "user_cache"]

VARIABLE = "PACTUNE_DATA"
_SECONDS = 60  # of waiting for a server


@dataclass(frozen=True)
class Archive:
    """A data set in its official files.

    Attributes:
        name: name of the data set.
        sums: md5 of every unpacked file.
        folders: where the files may lie under the data folder, the preferred one first.
        homes: public addresses. One that ends in "/" holds a gzipped file per name, any other is a tar of them all.
    """

    name: str
    sums: dict[str, str]
    folders: tuple[str, ...]
    homes: tuple[str, ...]


MNIST = Archive(
    "mnist",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    ("mnist", "MNIST/raw", "."),
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
)
CIFAR10 = Archive(
    "cifar10",
    {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    ("cifar10", "cifar-10-batches-bin", "."),
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)


def user_cache() -> Path:
    """Return the folder for downloads of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "pactune" / "data"


def data_home(given: Path | None) -> Path:
    """Return the data folder: the given one, `$PACTUNE_DATA`, or the user's cache."""
    if given is not None:
        return given
    named = os.environ.get(VARIABLE)
    return Path(named) if named else user_cache()


def find_files(archive: Archive, home: Path) -> dict[str, bytes] | None:
    """Return the verified content of every file, plain or gzipped; None if a file is missing.

    Raises:
        DataError: a file is not the official one.
    """
    for folder in archive.folders:
        found = {name: _content(home / folder / name) for name in archive.sums}
        if all(content is not None for content in found.values()):
            return {
                name: _verified(archive, name, content or b"", str(home / folder)) for name, content in found.items()
            }
    return None


def ensure_files(archive: Archive, home: Path, *, report: Callable[[str], None] = lambda _: None) -> dict[str, bytes]:
    """Return the content of every file; download the files into the data folder first if one is missing.

    Args:
        archive: the data set.
        home: the data folder.
        report: called with a line of text before a download.

    Raises:
        DataError: the files are missing and cannot be downloaded, or they are not the official ones.
    """
    found = find_files(archive, home)
    if found is not None:
        return found
    failures = []
    for address in archive.homes:
        report(f"downloading {archive.name} from {address}")
        try:
            files = _fetch(archive, address)
        except (OSError, EOFError, tarfile.TarError, KeyError) as error:
            failures.append(f"{address}: {error}")
            continue
        _store(archive, home, files)
        return files
    raise DataError(
        f"{archive.name} is not in {home} and cannot be downloaded ({'; '.join(failures)}). "
        f"Put {', '.join(archive.sums)} into {home / archive.folders[0]}, or name the folder that holds "
        f"{archive.name}/ with --data-dir or ${VARIABLE}"
    )


def _content(path: Path) -> bytes | None:
    zipped = path.with_name(f"{path.name}.gz")
    if path.is_file():
        return path.read_bytes()
    return gzip.decompress(zipped.read_bytes()) if zipped.is_file() else None


def _verified(archive: Archive, name: str, content: bytes, place: str) -> bytes:
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != archive.sums[name]:
        raise DataError(
            f"{name} in {place} is not the official file of {archive.name}: its md5 is {digest} instead of "
            f"{archive.sums[name]}; remove it to have it downloaded again"
        )
    return content


def _fetch(archive: Archive, address: str) -> dict[str, bytes]:
    if address.endswith("/"):
        files = {name: gzip.decompress(_read(f"{address}{name}.gz")) for name in archive.sums}
    else:
        with tarfile.open(fileobj=BytesIO(_read(address))) as tar:
            members = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
            parts = {name: tar.extractfile(members[name]) for name in archive.sums}
            files = {name: part.read() for name, part in parts.items() if part is not None}
    return {name: _verified(archive, name, content, address) for name, content in files.items()}


def _read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def _store(archive: Archive, home: Path, files: dict[str, bytes]) -> None:
    folder = home / archive.folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
