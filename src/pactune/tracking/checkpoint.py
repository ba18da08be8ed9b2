"""Checkpoints: one safetensors file each, with its checksum inside, written so that it is there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from pactune.errors import RunFolderError
from pactune.tracking.files import PARTIAL, write_atomically
from pactune.tracking.states import decode, encode
from pactune.trees import Params

__all__ = ["FORMAT", "DamagedError", "clear_partial", "list_checkpoints", "load_checkpoint", "save_checkpoint"]

FORMAT = 1
_STEM, _SUFFIX = "checkpoint-", ".safetensors"

logger = logging.getLogger(__name__)


class DamagedError(RunFolderError):
    """A checkpoint that is truncated or was changed."""


def save_checkpoint(folder: Path, number: int, state: Any, *, kept: int = 2) -> Path:
    """Write a checkpoint and forget all but the last `kept`.

    Raises:
        RunFolderError: it cannot be written; the earlier ones are untouched.
    """
    tensors: Params = {}
    text = json.dumps(encode(state, tensors), allow_nan=False)
    metadata = {"format": str(FORMAT), "state": text}
    metadata["checksum"] = _checksum(metadata, tensors)
    path = folder / f"{_STEM}{number:08d}{_SUFFIX}"
    write_atomically(path, save(tensors, metadata=metadata))
    for old in list_checkpoints(folder)[kept:]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path, device: torch.device) -> Any:
    """Return the state that was saved. Nothing in the file is ever executed.

    Raises:
        DamagedError: the file is truncated or was changed.
        RunFolderError: it is of another format.
    """
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise DamagedError(f"{path.name} cannot be read: {error}") from error
    if not {"format", "state", "checksum"} <= set(metadata):
        raise DamagedError(f"{path.name} is not a checkpoint of pactune")
    if metadata["checksum"] != _checksum(metadata, tensors):
        raise DamagedError(f"{path.name} is damaged: its checksum is wrong")
    if metadata["format"] != str(FORMAT):
        raise RunFolderError(
            f"{path} is of checkpoint format {metadata['format']} and this version reads {FORMAT}; "
            "resume with the version that wrote it"
        )
    return decode(json.loads(metadata["state"]), tensors, device)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    return sorted(folder.glob(f"{_STEM}*{_SUFFIX}"), reverse=True)


def clear_partial(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for partial in folder.glob(f"{_STEM}*{_SUFFIX}{PARTIAL}"):
        logger.info("removing %s, which was left half written", partial.name)
        partial.unlink(missing_ok=True)


def _checksum(metadata: dict[str, str], tensors: Params) -> str:
    """Return a hash of everything that a checkpoint says."""
    digest = hashlib.blake2b(f"{metadata['format']} {metadata['state']}".encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
