"""Checkpoints: each is one safetensors file that contains its checksum and is written atomically."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from pactune.errors import RunFolderError
from pactune.storage.documents import parse_json
from pactune.storage.files import PARTIAL, check_plain, remove_partial, write_atomically
from pactune.tracking.states import decode, encode
from pactune.trees import Params

__all__ = [
    "FORMAT",
    "DamagedError",
    "checkpoint_path",
    "clear_partial",
    "list_checkpoints",
    "load_checkpoint",
    "save_checkpoint",
    "step_of",
]

FORMAT = 4
_STEM, _SUFFIX = "checkpoint-", ".safetensors"
_NAME = re.compile(rf"{_STEM}\d{{8,}}{re.escape(_SUFFIX)}")

logger = logging.getLogger(__name__)


class DamagedError(RunFolderError):
    """The checkpoint is truncated or was changed."""


def save_checkpoint(folder: Path, number: int, state: Any, *, kept: int = 2) -> Path:
    """Write a checkpoint and delete older ones, so that the last `kept` stay.

    Raises:
        RunFolderError: the file cannot be written; older checkpoints are unchanged.
    """
    tensors: Params = {}
    text = json.dumps(encode(state, tensors), allow_nan=False)
    metadata = {"format": str(FORMAT), "state": text}
    metadata["checksum"] = _checksum(metadata, tensors)
    path = checkpoint_path(folder, number)
    write_atomically(path, save(tensors, metadata=metadata))
    for old in [other for other in list_checkpoints(folder) if other.name < path.name][kept - 1 :]:
        _delete(old)
    return path


def checkpoint_path(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint after `number` outer steps."""
    return folder / f"{_STEM}{number:08d}{_SUFFIX}"


def load_checkpoint(path: Path, device: torch.device) -> Any:
    """Return the saved state. No code from the file is executed.

    Raises:
        DamagedError: the file is truncated, was changed, or is no checkpoint of pactune.
        RunFolderError: the file has another format.
    """
    metadata, tensors = _content(path)
    if metadata["checksum"] != _checksum(metadata, tensors):
        raise DamagedError(f"{path.name} is damaged: its checksum is wrong")
    if metadata["format"] != str(FORMAT):
        raise RunFolderError(
            f"{path} is of checkpoint format {metadata['format']} and this version reads {FORMAT}; "
            "resume with the version that wrote it"
        )
    try:
        return decode(parse_json(metadata["state"]), tensors, device)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path.name} is not laid out as a checkpoint: {error}") from error


def _content(path: Path) -> tuple[dict[str, str], Params]:
    """Return the metadata and tensors of a file; the checksum is not verified yet."""
    try:
        check_plain(path)
        with safe_open(str(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, RunFolderError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise DamagedError(f"{path.name} cannot be read: {error}") from error
    if not {"format", "state", "checksum"} <= set(metadata):
        raise DamagedError(f"{path.name} is not a checkpoint of pactune")
    return metadata, tensors


def step_of(path: Path) -> int:
    """Return the outer step of a checkpoint from its file name.

    >>> step_of(checkpoint_path(Path("run"), 12))
    12
    """
    return int(path.name.removeprefix(_STEM).removesuffix(_SUFFIX))


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    found = [path for path in folder.glob(f"{_STEM}*{_SUFFIX}") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (len(path.name), path.name), reverse=True)


def clear_partial(folder: Path) -> None:
    """Remove partially written files of a killed process."""
    for partial in folder.glob(f"{_STEM}*{_SUFFIX}*{PARTIAL}"):
        logger.info("removing %s, which was left half written", partial.name)
        remove_partial(partial)


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", path, error)


def _checksum(metadata: dict[str, str], tensors: Params) -> str:
    """Return a hash of the whole content of a checkpoint."""
    digest = hashlib.blake2b(f"{metadata['format']} {metadata['state']}".encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
