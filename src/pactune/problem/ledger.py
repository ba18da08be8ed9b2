"""The ledger: which samples the values of tensors have seen, in this process.

A fit records the samples of its problem for the tensors that it trains. The record follows a tensor as long as it
lives, and it follows the values into copies: `deepcopy`, `load_state_dict`, `clone`, or a file that this process reads
back. Values that somebody changed after copying them, or that come from another process, are not known here.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pactune.errors import DataError
from pactune.problem.provenance import DataMark

__all__ = ["LEDGER", "Ledger"]

HELD = 16  # samples that are kept as they are; of older ones only what tells their rows apart


@dataclass
class _Sample:
    mark: DataMark


@dataclass
class _Entry:
    """The record of one tensor: a digest of its values before the first fit, and what the fits since then have seen."""

    clean: bytes | None
    begun: bytes | None
    seen: tuple[_Sample, ...]


class Ledger:
    """What the values of tensors have seen. Only floating-point tensors are recorded."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._tensors: MutableMapping[Tensor, _Entry] = WeakTensorKeyDictionary()
        self._values: dict[bytes, tuple[_Sample, ...]] = {}
        self._samples: deque[_Sample] = deque()

    def begin(self, tensors: Iterable[Tensor], sample_ids: Iterable[DataMark]) -> None:
        """Record that the samples are about to change the tensors."""
        with self._lock:
            fresh = [self._sample(mark) for mark in sample_ids]
            for tensor in _floating(tensors):
                digest, old = _digest(tensor), self._entry(tensor)
                known = _merge(self._known(tensor, digest), fresh)
                clean = old.clean if old is not None else digest
                self._tensors[tensor] = _Entry(clean, digest, known)

    def end(self, tensors: Iterable[Tensor]) -> None:
        """Record the values that the tensors have now, so that copies of them are recognised."""
        with self._lock:
            for tensor in _floating(tensors):
                entry, digest = self._entry(tensor), _digest(tensor)
                if entry is not None and digest is not None and digest != entry.begun:
                    self._values[digest] = entry.seen  # the same values from an earlier fit had the same data

    def seen(self, tensors: Iterable[Tensor]) -> tuple[DataMark, ...]:
        """Return the samples that the present values of the tensors have seen, as far as it is known."""
        found: tuple[_Sample, ...] = ()
        with self._lock:
            for tensor in _floating(tensors):
                if self._entry(tensor) is not None or self._values:
                    found = _merge(found, self._known(tensor, _digest(tensor)))
            return tuple(sample.mark for sample in found)

    def _entry(self, tensor: Tensor) -> _Entry | None:
        return self._tensors.get(tensor, None)

    def _known(self, tensor: Tensor, digest: bytes | None) -> tuple[_Sample, ...]:
        """Return what a tensor has seen; one that holds its values from before the first fit again is clean."""
        entry = self._entry(tensor)
        followed = entry.seen if entry is not None and digest != entry.clean else ()
        return _merge(followed, self._values.get(digest, ()) if digest is not None else ())

    def _sample(self, mark: DataMark) -> _Sample:
        """Return the record of a sample, and let go of what an old one holds in memory."""
        old = next((sample for sample in self._samples if sample.mark is mark), None)
        if old is not None:
            return old
        self._samples.append(_Sample(mark))
        if len(self._samples) > HELD:
            oldest = self._samples.popleft()
            with suppress(DataError):  # rows that cannot be told apart are refused when somebody asks for them
                oldest.mark = oldest.mark.light()
        return self._samples[-1]


LEDGER = Ledger()


def _floating(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]


@torch.no_grad()
def _digest(tensor: Tensor) -> bytes | None:
    """Return a digest of the values in float32; None for all zeros or all ones, which say nothing."""
    values = tensor.detach().float()
    if bool((values == 0).all()) or bool((values == 1).all()):
        return None
    content = values.cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content.data, digest_size=16).digest()


def _merge(first: Iterable[_Sample], second: Iterable[_Sample]) -> tuple[_Sample, ...]:
    return tuple({id(sample): sample for sample in (*first, *second)}.values())
