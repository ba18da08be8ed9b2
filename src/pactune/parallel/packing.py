"""Dicts of tensors and nested states as flat tensors, which one message can carry from rank to rank."""

from __future__ import annotations

import hashlib
from typing import TypeVar, cast

import torch
from torch import Tensor

from pactune.nested import map_tensors
from pactune.trees import Params

__all__ = ["digest", "flatten", "pack", "unflatten", "unpack"]

T = TypeVar("T")


def flatten(*trees: Params) -> Tensor:
    """Return all values in one vector. All values must have the same dtype."""
    return torch.cat([value.detach().reshape(-1) for tree in trees for value in tree.values()])


def unflatten(flat: Tensor, like: Params) -> Params:
    """Return the parts of a vector with the names and shapes of `like`."""
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def pack(state: object) -> Tensor:
    """Return the bytes of all tensors of a nested state; the tensors may differ in dtype. Shape (bytes,).

    >>> pack({"a": torch.zeros(2), "b": (torch.ones(3, dtype=torch.int64), 7)}).shape
    torch.Size([32])
    """
    parts: list[Tensor] = []

    def append_bytes(tensor: Tensor) -> Tensor:
        parts.append(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
        return tensor

    map_tensors(state, append_bytes)
    return torch.cat(parts)


def unpack(flat: Tensor, like: T) -> T:
    """Return a state with the structure of `like` and the tensors whose bytes `pack` returned."""
    position = 0

    def read_bytes(tensor: Tensor) -> Tensor:
        nonlocal position
        size = tensor.numel() * tensor.element_size()
        part = flat[position : position + size].clone()  # view(dtype) needs an aligned start, which a slice may lack
        position += size
        return part.view(tensor.dtype).view(tensor.shape).to(tensor.device)

    return cast(T, map_tensors(like, read_bytes))


def digest(value: object) -> int:
    """Return a 63-bit hash of a value: of the bytes of its tensors and of the text of everything else."""
    found = hashlib.blake2b(digest_size=8)

    def hash_bytes(tensor: Tensor) -> Tensor:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return torch.empty(0, dtype=torch.uint8, device="cpu")  # its text depends on no device and no default dtype

    found.update(repr(map_tensors(value, hash_bytes)).encode())
    return int.from_bytes(found.digest(), "little") >> 1
