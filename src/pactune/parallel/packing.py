"""Trees and states as single flat tensors, the form in which they travel between ranks."""

from __future__ import annotations

import hashlib
from typing import TypeVar, cast

import torch
from torch import Tensor

from pactune.problem.data.source import map_tensors
from pactune.trees import Params

__all__ = ["digest", "flatten", "pack", "unflatten", "unpack"]

T = TypeVar("T")


def flatten(*trees: Params) -> Tensor:
    """Return all values in one vector; they are of one type."""
    return torch.cat([value.detach().reshape(-1) for tree in trees for value in tree.values()])


def unflatten(flat: Tensor, like: Params) -> Params:
    """Give a vector the names and shapes of `like`."""
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def pack(state: object) -> Tensor:
    """Return the bytes of all tensors of a nested state, whatever their types. Shape (bytes,).

    >>> pack({"a": torch.zeros(2), "b": (torch.ones(3, dtype=torch.int64), 7)}).shape
    torch.Size([32])
    """
    parts: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        parts.append(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
        return tensor

    map_tensors(state, note)
    return torch.cat(parts)


def unpack(flat: Tensor, like: T) -> T:
    """Return a state like `like` with the tensors that `pack` was given."""
    position = 0

    def take(tensor: Tensor) -> Tensor:
        nonlocal position
        size = tensor.numel() * tensor.element_size()
        part = flat[position : position + size].clone()  # a copy, so that it starts where its type may start
        position += size
        return part.view(tensor.dtype).view(tensor.shape).to(tensor.device)

    return cast(T, map_tensors(like, take))


def digest(value: object) -> int:
    """Return 63 bits by which a value can be told from another: tensors by their bytes, the rest by its text."""
    found = hashlib.blake2b(digest_size=8)

    def note(tensor: Tensor) -> Tensor:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return torch.empty(0, dtype=torch.uint8, device="cpu")  # its text names neither device nor default type

    found.update(repr(map_tensors(value, note)).encode())
    return int.from_bytes(found.digest(), "little") >> 1
