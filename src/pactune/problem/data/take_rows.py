"""Some rows of a tensor, dense or sparse."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["LAYOUTS", "first_rows", "take_rows"]

LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)  # layouts whose rows can be taken by number


def take_rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Return the rows of a tensor that `index` names, in its layout. A row may occur twice.

    >>> dense = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    >>> rows = take_rows(dense.to_sparse_csr(), torch.tensor([2, 0, 2]))
    >>> rows.layout, rows.to_dense().tolist()
    (torch.sparse_csr, [[0.0, 3.0], [0.0, 1.0], [0.0, 3.0]])
    """
    index = index.to(tensor.device)
    if tensor.layout == torch.sparse_csr:
        return _csr_rows(tensor, index)
    if tensor.layout == torch.sparse_coo:
        return tensor.coalesce().index_select(0, index).coalesce()
    return tensor.index_select(0, index)


def first_rows(tensor: Tensor, count: int) -> Tensor:
    """Return the first rows of a tensor."""
    if tensor.layout == torch.strided:
        return tensor[:count]
    return take_rows(tensor, torch.arange(count, device=tensor.device))


def _csr_rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Return rows of a CSR matrix: the entries of row i are those from crow[i] to crow[i + 1]."""
    crow, columns, values = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    counts = (crow[1:] - crow[:-1])[index]
    ends = counts.cumsum(0)
    row_of = torch.repeat_interleave(torch.arange(len(index), device=index.device), counts)
    inside = torch.arange(len(row_of), device=index.device) - (ends - counts)[row_of]  # the place within its row
    entries = crow[index][row_of] + inside
    pointers = torch.cat([ends.new_zeros(1), ends]).to(crow.dtype)
    size = (len(index), *tensor.shape[1:])
    parts = pointers, columns[entries], values[entries]
    return torch.sparse_csr_tensor(*parts, size=size, device=tensor.device, check_invariants=False)
