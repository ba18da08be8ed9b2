"""Data sets as endless, replayable streams of mini-batches S^(t)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from pactune.checks import check_count
from pactune.errors import DataError, SettingError
from pactune.nested import flatten, items_of
from pactune.problem.data.dataset import DatasetRows
from pactune.problem.data.indexed import TensorRows, length_of
from pactune.problem.data.loader import LoaderBatches, Stream
from pactune.problem.data.prefetch import move
from pactune.problem.data.source import Batch, Source
from pactune.problem.data.take_rows import LAYOUTS
from pactune.problem.data.typed import in_type
from pactune.problem.data.workers import WorkerSettings

__all__ = ["Batch", "BatchSizes", "Source", "Stream", "as_source", "in_type", "move"]

STRUCTURES = (tuple, list, dict, Tensor)  # the usual data, which hold tensors


class BatchSizes(NamedTuple):
    """The sizes of a problem's mini-batches; None takes all rows.

    Attributes:
        train: of training mini-batches.
        valid: of validation mini-batches.
        risk: of those on which the risk at θ_T is computed; "same" takes the size of the sample's other mini-batches.
    """

    train: int | None
    valid: int | None
    risk: int | Literal["same"] | None

    def source(self, data: Any, role: Literal["train", "valid"], device: torch.device) -> Source:
        """Return a sample as a stream of mini-batches of these sizes.

        Raises:
            DataError: the data cannot be used.
            SettingError: a size breaks its rule.
        """
        source = as_source(data, role=role, device=device, batch_size=getattr(self, role))
        if self.risk == "same":
            return source
        check_count("risk_batch_size", self.risk, words='at least 1, or "same"', none="for all rows")
        return source.with_risk_size(self.risk)


def as_source(data: Any, *, role: str, device: torch.device, batch_size: int | None = None) -> Source:
    """Turn tensors, a `Dataset` or a `DataLoader` into a stream of mini-batches.

    Args:
        data: a tensor, a tuple, dict or dataclass of tensors with equal first dimension (nested ones too), a `Dataset`
            or a `DataLoader`; an `IterableDataset` and a `Stream` too.
        role: the name used in messages, "train", "valid" or "test".
        device: the model's device. Tensors must be on it; batches of a `Dataset` or `DataLoader` are moved to it.
        batch_size: rows per mini-batch; None takes all rows. A `DataLoader` brings its own.

    Raises:
        DataError: the data are empty, of unknown type, or on another device.
    """
    if batch_size is not None:
        name = "batch_size" if role == "train" else f"{role}_batch_size"
        check_count(name, batch_size, words="at least 1", none="for all rows")
    if type(data) not in STRUCTURES and (source := _made_by_others(data, role, device, batch_size)) is not None:
        return source
    leaves = flatten(data)[0]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    others = [leaf for leaf in leaves if leaf is not None and not isinstance(leaf, Tensor)]
    if others or not tensors:
        raise DataError(
            f"`{role}` must be a tensor, a tuple, dict or dataclass of tensors, a Dataset or a DataLoader, got "
            f"{_kind(data)}; turn arrays into tensors with torch.as_tensor"
        )
    _check_tensors(tensors, role, device)
    return TensorRows((data,) if isinstance(data, Tensor) else data, tensors, batch_size=batch_size)


def _made_by_others(data: Any, role: str, device: torch.device, batch_size: int | None) -> Source | None:
    """Return the source of a `Dataset`, a `DataLoader` or a `Stream`, and a source itself; None for tensors."""
    if isinstance(data, Source):
        return data
    if isinstance(data, IterableDataset):
        data, batch_size = _streamed(data, role, batch_size), None
    if isinstance(data, (DataLoader, Stream)):
        if batch_size is not None:
            raise SettingError(
                f"`{role}` is a {type(data).__name__} and brings its own batch size; leave `batch_size` out"
            )
        if isinstance(data, Stream):
            return LoaderBatches(data.loader, role=role, device=device, batches=data.batches)
        return _from_loader(data, role, device)
    if isinstance(data, Dataset):
        if length_of(data) == 0:
            raise DataError(f"`{role}` is empty: it needs at least one row")
        return DatasetRows(data, device=device, batch_size=batch_size)
    return None


def _check_tensors(tensors: Sequence[Tensor], role: str, device: torch.device) -> None:
    lengths = [tensor.shape[0] if tensor.ndim else -1 for tensor in tensors]
    if len(set(lengths)) != 1 or lengths[0] < 0:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise DataError(f"`{role}` tensors must have the same number of rows, got shapes {shapes}")
    if lengths[0] == 0:
        raise DataError(f"`{role}` is empty: it needs at least one row")
    for tensor in tensors:
        if tensor.layout not in LAYOUTS or (tensor.layout == torch.sparse_csr and tensor.ndim != 2):
            raise DataError(
                f"`{role}` has a tensor of layout {tensor.layout}, whose rows cannot be taken by number; use "
                ".to_dense(), .to_sparse_coo(), or .to_sparse_csr() of a matrix"
            )
        if tensor.device != device:
            raise DataError(
                f"`{role}` is on {tensor.device} and the model on {device}; move one of them with `.to(...)` first"
            )


def _streamed(data: IterableDataset[Any], role: str, batch_size: int | None) -> DataLoader[Any]:
    """Return a stream of rows as a loader of batches."""
    if batch_size is None:
        name = "batch_size" if role == "train" else f"{role}_batch_size"
        raise DataError(
            f"`{role}` is an IterableDataset, whose rows are never all there, so `{name}` must say how many a batch "
            "has; or wrap it in a DataLoader"
        )
    return DataLoader(data, batch_size=batch_size)


def _from_loader(loader: DataLoader[Any], role: str, device: torch.device) -> Source:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None or not _standard(loader.sampler):
        return LoaderBatches(loader, role=role, device=device)
    rows = length_of(loader.dataset)
    if rows < (loader.batch_size if loader.drop_last else 1):
        raise DataError(
            f"`{role}` is an empty DataLoader, which yields no batch: its dataset has {rows} rows, batch_size="
            f"{loader.batch_size} and drop_last={loader.drop_last}"
        )
    return DatasetRows(
        loader.dataset,
        device=device,
        batch_size=loader.batch_size,
        collate=loader.collate_fn,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
        workers=WorkerSettings.of(loader, device),
    )


def _standard(sampler: object) -> bool:
    """True if a sampler visits every row once, in order or at random, so that its order can be replayed by number."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _kind(data: object) -> str:
    name, parts = type(data).__name__, items_of(data)
    if parts is None:
        return name
    listed = ", ".join(type(part).__name__ if key is None else f"{key}: {type(part).__name__}" for key, part in parts)
    return f"{name} of ({listed})"
