"""`SEEN_DATA`: the samples that the values of each tensor were trained on, in this process.

A fit records the samples of its problem for the tensors that it trains. The record follows a tensor as long as the
tensor lives. It also follows the values into copies: `deepcopy`, `load_state_dict`, `clone`, or a file that this
process reads back. The record does not cover values that were changed after copying, or that come from another process.
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

__all__ = ["SEEN_DATA", "SeenData"]

HEAD = 16  # values of a tensor that are compared before its digest is computed
MOST_SAMPLES = 16  # samples whose data stay in memory; older ones keep only the identities of their rows


@dataclass(eq=False)
class _SeenSample:
    mark: DataMark


@dataclass
class _TensorRecord:
    """The record of one tensor.

    Attributes:
        initial: a digest of the values before the first fit.
        begun: a digest of the values when the last fit began.
        seen: the samples of all fits since then.
    """

    initial: bytes | None
    begun: bytes | None
    seen: tuple[_SeenSample, ...]


class SeenData:
    """The samples that tensors were trained on. Only floating-point tensors are recorded."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._by_tensor: MutableMapping[Tensor, _TensorRecord] = WeakTensorKeyDictionary()
        self._by_digest: dict[bytes, tuple[_SeenSample, ...]] = {}
        self._known_heads: set[bytes] = set()  # the first values of the tensors in `_by_digest`
        self._samples: deque[_SeenSample] = deque()

    def begin_fit(self, tensors: Iterable[Tensor], sample_ids: Iterable[DataMark]) -> None:
        """Record that a fit on these samples is about to change the tensors."""
        with self._lock:
            fresh = [self._sample(mark) for mark in sample_ids]
            samples = _merge(fresh, ())
            for tensor in _floating(tensors):
                old = self._record(tensor)
                if old is not None and old.seen == samples and not self._may_be_known(tensor):
                    continue  # the record says so already, and no other values are known that these could be
                digest = _digest(tensor)
                known = _merge(self._known(tensor, digest), fresh)
                initial = old.initial if old is not None else digest
                self._by_tensor[tensor] = _TensorRecord(initial, digest, known)

    def go_on(self, tensors: Iterable[Tensor], sample_ids: Iterable[DataMark]) -> None:
        """Record the same for tensors that a fit goes on to change; their values are read only if their record is new.

        The values are as many as the parameters, so a loop of short rounds must not read them in every round.
        """
        with self._lock:
            marks = list(sample_ids)
            wanted = {id(self._sample(mark)) for mark in marks}
            records = [(tensor, self._record(tensor)) for tensor in _floating(tensors)]
            fresh = [tensor for tensor, old in records if old is None or not wanted <= set(map(id, old.seen))]
            if fresh:
                self.begin_fit(fresh, marks)

    def end_fit(self, tensors: Iterable[Tensor]) -> None:
        """Record the present values of the tensors, so that copies of them are recognised."""
        with self._lock:
            for tensor in _floating(tensors):
                record, digest = self._record(tensor), _digest(tensor)
                if record is not None and digest is not None and digest != record.begun:
                    self._by_digest[digest] = record.seen  # the same values from an earlier fit had the same data
                    self._known_heads.add(_head(tensor))

    def samples_of(self, tensors: Iterable[Tensor]) -> tuple[DataMark, ...]:
        """Return the known samples that the present values of the tensors were trained on."""
        found: tuple[_SeenSample, ...] = ()
        with self._lock:
            for tensor in _floating(tensors):
                if self._record(tensor) is not None or self._by_digest:
                    found = _merge(found, self._known(tensor, _digest(tensor)))
            return tuple(sample.mark for sample in found)

    def _record(self, tensor: Tensor) -> _TensorRecord | None:
        return self._by_tensor.get(tensor, None)

    def _may_be_known(self, tensor: Tensor) -> bool:
        """Return False if no digest is that of this tensor. This is cheap: a loop of the user asks at every step."""
        return bool(self._known_heads) and _head(tensor) in self._known_heads

    def _known(self, tensor: Tensor, digest: bytes | None) -> tuple[_SeenSample, ...]:
        """Return the samples that a tensor has seen: none if it holds its values from before the first fit again."""
        record = self._record(tensor)
        followed = record.seen if record is not None and digest != record.initial else ()
        return _merge(followed, self._by_digest.get(digest, ()) if digest is not None else ())

    def _sample(self, mark: DataMark) -> _SeenSample:
        """Return the record of a sample, and free the data of the oldest sample if there are too many."""
        old = next((sample for sample in self._samples if sample.mark is mark), None)
        if old is not None:
            return old
        self._samples.append(_SeenSample(mark))
        if len(self._samples) > MOST_SAMPLES:
            oldest = self._samples.popleft()
            with suppress(DataError):  # rows that cannot be compared raise when a certificate compares them
                oldest.mark = oldest.mark.without_data()
        return self._samples[-1]


SEEN_DATA = SeenData()


def _floating(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]


@torch.no_grad()
def _digest(tensor: Tensor) -> bytes | None:
    """Return a digest of the values in float32; None for all zeros or all ones, which many untrained tensors hold."""
    values = tensor.detach().float().cpu().contiguous().view(-1).numpy()
    if values[0] in (0, 1) and bool((values == values[0]).all()):
        return None
    return hashlib.blake2b(values.data, digest_size=16).digest()


@torch.no_grad()
def _head(tensor: Tensor) -> bytes:
    """Return the first values in float32, as bytes. Equal tensors have equal ones."""
    return tensor.detach().reshape(-1)[:HEAD].float().cpu().numpy().tobytes()


def _merge(first: Iterable[_SeenSample], second: Iterable[_SeenSample]) -> tuple[_SeenSample, ...]:
    return tuple({id(sample): sample for sample in (*first, *second)}.values())
