"""Move batches to the device. On a GPU the next batch is copied while the current step runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from pactune.nested import map_tensors, tensors_in

__all__ = ["move", "on_device"]


def move(data: Any, device: torch.device) -> Any:
    """Move every tensor of a nested batch to `device`; the copy of a pinned tensor does not wait."""
    return map_tensors(data, lambda tensor: tensor.to(device, non_blocking=_is_pinned(tensor, device)))


def _is_pinned(tensor: torch.Tensor, device: torch.device) -> bool:
    strided = device.type == "cuda" and tensor.layout == torch.strided and tensor.device.type == "cpu"
    return strided and tensor.is_pinned()


def on_device(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yield the batches on the device. On a CPU this is a plain loop."""
    if device.type == "cuda":
        return _ahead(iter(batches), device)
    return (move(data, device) for data in batches)


def _ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield the batches on a GPU, each copied on a stream of its own while the step before it runs.

    An error of the data set is raised in the place of the batch that it belongs to.
    """
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ahead, failure = _copied(batches, device, side)
    while ahead is not None or failure is not None:
        if failure is not None:
            raise failure
        present = ahead
        main = torch.cuda.current_stream(device)
        main.wait_stream(side)
        for tensor in tensors_in(present):
            if tensor.layout == torch.strided:
                tensor.record_stream(main)  # so that its memory is not given away while a step reads it
        ahead, failure = _copied(batches, device, side)
        assert present is not None
        yield present[0]


def _copied(
    batches: Iterator[Any], device: torch.device, side: torch.cuda.Stream
) -> tuple[tuple[Any] | None, Exception | None]:
    """Start to copy the next batch; return it, or None at the end, or the error of the data set."""
    try:
        with torch.cuda.stream(side):
            return (move(next(batches), device),), None
    except StopIteration:
        return None, None
    except Exception as error:  # the data set is the user's and may do anything
        return None, error
