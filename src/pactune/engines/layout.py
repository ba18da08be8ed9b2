"""Turn a nested value into a flat list of tensors and back. Recordings take and return flat lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pactune import nested

__all__ = ["Forms", "TensorList", "TreeLayout", "flatten", "tensor_forms", "with_unit_strides"]

TensorList = list[Tensor]
Forms = tuple[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device], ...]


class TreeLayout(NamedTuple):
    """The structure of a nested value without its tensors. Calls with equal layouts can share a recording.

    Attributes:
        spec: the nesting.
        constants: the leaves that are no tensors, with their positions among all leaves.
        tensors: shape and dtype of every tensor.
    """

    spec: nested.Nesting
    constants: tuple[tuple[int, Any], ...]
    tensors: tuple[tuple[torch.Size, torch.dtype], ...]

    def restore(self, flat: Sequence[Tensor]) -> Any:
        """Return the nested value of a flat list."""
        leaves: list[Any] = list(flat)
        for position, constant in self.constants:
            leaves.insert(position, constant)
        return self.spec.restore(leaves)


def flatten(value: Any) -> tuple[TensorList, TreeLayout]:
    """Return the tensors of a nested value, and its layout.

    >>> tensors, layout = flatten({"w": torch.ones(2), "steps": 3})
    >>> layout.restore([2 * tensors[0]])
    {'w': tensor([2., 2.]), 'steps': 3}
    """
    leaves, spec = nested.flatten(value)
    flat = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    constants = tuple((i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor))
    return flat, TreeLayout(spec, constants, tuple((tensor.shape, tensor.dtype) for tensor in flat))


def tensor_forms(tensors: TensorList) -> Forms:
    """Return what compiled programs and CUDA graphs assume about their tensors."""
    return tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors)


def with_unit_strides(tensors: TensorList) -> TensorList:
    """Return the tensors with stride 1 along axes of length 1, so that tensors with equal memory have equal forms.

    Any stride along such an axis names the same memory, and operations choose different ones. The kernels of 1 × 1
    convolutions have such axes.

    >>> with_unit_strides([torch.empty(8, 4, 1, 1).to(memory_format=torch.channels_last)])[0].stride()
    (4, 1, 1, 1)
    """
    return [_with_unit_strides(tensor) if 1 in tensor.shape else tensor for tensor in tensors]


def _with_unit_strides(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor
    strides = [1 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)
