"""Convert a state to JSON and tensors and back: nested dicts, lists, tuples, numbers, texts. It contains no code."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pactune.errors import SettingError
from pactune.storage.documents import FLOAT, decode_float
from pactune.trees import Params

__all__ = ["decode", "encode"]

# JSON has no tuples, no tensors, and only texts as keys. An object with one of these keys stands for them.
TENSOR, TUPLE, PAIRS = "$tensor", "$tuple", "$pairs"
KEYS = (str, int, float, bool, type(None), tuple)


def encode(state: Any, tensors: Params) -> Any:
    """Return a state as a JSON document, and put its tensors into `tensors`.

    Tensors that share memory are stored once. If a tensor is not contiguous, the order of its axes in memory is stored
    too, since a kernel may choose its order of summation by it. Gaps between elements are not stored.

    >>> encode({"betas": (0.9, 0.99), 3: math.inf}, {})
    {'$pairs': [['betas', {'$tuple': [0.9, 0.99]}], [3, {'$float': 'inf'}]]}

    Raises:
        SettingError: the state contains an object that is no number, text, tensor or container of these.
    """
    return _Encoder(tensors).encode(state)


class _Encoder:
    def __init__(self, tensors: Params) -> None:
        self._tensors = tensors
        self._seen: dict[tuple[Any, ...], str] = {}

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {FLOAT: repr(float(value))}
        if isinstance(value, Tensor):
            return self._tensor(value.detach())
        if isinstance(value, list):
            return [self.encode(part) for part in value]
        if isinstance(value, tuple):
            return {TUPLE: [self.encode(part) for part in value]}
        if isinstance(value, dict):
            return self._dict(value)
        raise SettingError(
            f"a checkpoint holds numbers, texts, tensors and containers of them, and cannot hold a "
            f"{type(value).__name__}: {value!r}"
        )

    def _dict(self, value: dict[Any, Any]) -> Any:
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: self.encode(part) for key, part in value.items()}
        return {PAIRS: [[self.encode(key), self.encode(part)] for key, part in value.items()]}

    def _tensor(self, value: Tensor) -> dict[str, Any]:
        memory = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        key = memory if value.numel() else ("empty", len(self._tensors))
        if key not in self._seen:
            name = self._seen[key] = str(len(self._tensors))
            self._tensors[name] = value.cpu().clone(memory_format=torch.contiguous_format)
        found: dict[str, Any] = {TENSOR: self._seen[key]}
        dense = torch.empty_like(value, device="meta")
        if not dense.is_contiguous():
            found["stride"] = list(dense.stride())
        if value.device.type != "cpu":
            found["on_device"] = True
        return found


def decode(document: Any, tensors: Params, device: torch.device) -> Any:
    """Return the original state of `encode`; tensors from an accelerator are moved to `device`.

    Raises:
        ValueError: `encode` does not write such a document.
    """
    if isinstance(document, list):
        return [decode(part, tensors, device) for part in document]
    if not isinstance(document, dict):
        return document
    special = [key for key in document if key.startswith("$")]
    if not special:
        return {key: decode(part, tensors, device) for key, part in document.items()}
    if special == [TENSOR]:
        return _restored(document, tensors, device)
    if special == [FLOAT]:
        return decode_float(document)
    (key, parts), *others = document.items()
    if others or not isinstance(parts, list) or key not in (TUPLE, PAIRS):
        raise ValueError(f"{', '.join(special)[:80]} stands for nothing that a checkpoint holds")
    found = decode(parts, tensors, device)
    return tuple(found) if key == TUPLE else _paired(found)


def _paired(pairs: list[Any]) -> dict[Any, Any]:
    """Return a dict from its pairs; its keys are not all texts."""
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], KEYS) for pair in pairs):
        raise ValueError(f"{PAIRS} must hold pairs of a number or text and a value")
    try:
        found = dict(pairs)
    except TypeError as error:  # a tuple that holds a list
        raise ValueError(f"{PAIRS} has a key that cannot be one") from error
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _restored(document: dict[str, Any], tensors: Params, device: torch.device) -> Tensor:
    """Return a tensor with its original strides."""
    name, stride, there = document[TENSOR], document.get("stride"), document.get("on_device", False)
    if not isinstance(name, str) or name not in tensors or there not in (True, False) or len(document) > 3:
        raise ValueError(f"{TENSOR} must name a tensor of the file, got {str(document)[:80]}")
    value = tensors[name]
    if stride is not None:
        if not _is_dense(value, stride):
            raise ValueError(f"a tensor of shape {tuple(value.shape)} cannot have the strides {str(stride)[:80]}")
        value = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)
    return value.to(device) if there else value


def _is_dense(value: Tensor, stride: Any) -> bool:
    """True if the strides leave no gaps between the elements, in any order of the axes."""
    if not isinstance(stride, list) or len(stride) != value.ndim or not all(type(step) is int for step in stride):
        return False
    expected = 1
    for step, size in sorted(zip(stride, value.shape, strict=True)):
        if step != expected and size != 1:
            return False
        expected *= size
    return all(0 < step <= max(value.numel(), 1) for step in stride)
