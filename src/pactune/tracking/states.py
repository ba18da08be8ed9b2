"""A state as JSON and tensors: nested dicts, lists, tuples, numbers and texts, and nothing that could run."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pactune.errors import SettingError
from pactune.trees import Params

__all__ = ["decode", "encode"]

# JSON has no tuples, no infinity, no keys but texts, and no tensors: an object with one of these keys stands for them.
TENSOR, TUPLE, PAIRS, FLOAT = "$tensor", "$tuple", "$pairs", "$float"


def encode(state: Any, tensors: Params) -> Any:
    """Return a state as JSON can hold it, and put its tensors into `tensors`.

    Tensors that are the same memory are stored once. Strides are kept where they are not the usual ones, since a
    kernel may choose its order of summation by them.

    >>> encode({"betas": (0.9, 0.99), 3: math.inf}, {})
    {'$pairs': [['betas', {'$tuple': [0.9, 0.99]}], [3, {'$float': 'inf'}]]}

    Raises:
        SettingError: something in the state is neither a number, text, tensor nor a container of such.
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
        place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        key = place if value.numel() else ("empty", len(self._tensors))
        if key not in self._seen:
            name = self._seen[key] = str(len(self._tensors))
            self._tensors[name] = value.cpu().clone(memory_format=torch.contiguous_format)
        found: dict[str, Any] = {TENSOR: self._seen[key]}
        if not value.is_contiguous():
            found["stride"] = list(value.stride())
        if value.device.type != "cpu":
            found["on_device"] = True
        return found


def decode(document: Any, tensors: Params, device: torch.device) -> Any:
    """Return the state that `encode` was given; what was on an accelerator goes to `device`."""
    if isinstance(document, list):
        return [decode(part, tensors, device) for part in document]
    if not isinstance(document, dict):
        return document
    if TENSOR in document:
        return _restored(document, tensors, device)
    if TUPLE in document:
        return tuple(decode(part, tensors, device) for part in document[TUPLE])
    if PAIRS in document:
        return {decode(key, tensors, device): decode(part, tensors, device) for key, part in document[PAIRS]}
    if FLOAT in document:
        return float(document[FLOAT])
    return {key: decode(part, tensors, device) for key, part in document.items()}


def _restored(document: dict[str, Any], tensors: Params, device: torch.device) -> Tensor:
    value = tensors[document[TENSOR]]
    if "stride" in document:
        value = torch.empty_strided(value.shape, document["stride"], dtype=value.dtype).copy_(value)
    return value.to(device) if document.get("on_device") else value
