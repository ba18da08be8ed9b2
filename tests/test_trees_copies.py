"""Copies of trees: every type and layout, and no memory shared."""

import pytest
import torch
from torch import Tensor

from pactune.trees import Params, clone, copy_, copy_tensors_


def tree(seed: int = 0) -> Params:
    """Return tensors of four types and two layouts, ten of each, so that kernels for many tensors are used."""
    draw = torch.Generator().manual_seed(seed)
    found: Params = {}
    for i in range(10):
        found[f"float{i}"] = torch.randn(3, 4, generator=draw)
        found[f"double{i}"] = torch.randn(3, 4, dtype=torch.float64, generator=draw)
        found[f"transposed{i}"] = torch.randn(4, 3, generator=draw).t()
        found[f"count{i}"] = torch.randint(0, 9, (), generator=draw)
        found[f"flag{i}"] = torch.rand(2, generator=draw) < 0.5
    return found


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def test_a_clone_has_the_order_types_and_layouts_and_other_memory() -> None:
    own = tree()
    found = clone(own)
    assert list(found) == list(own)
    assert all(same(found[name], value) for name, value in own.items())
    assert not {value.data_ptr() for value in own.values()} & {value.data_ptr() for value in found.values()}


def test_a_clone_is_outside_every_graph() -> None:
    own = {name: value.requires_grad_() for name, value in tree().items() if name.startswith("float")}
    assert not any(value.requires_grad for value in clone(own).values())


@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.t().contiguous().t() if x.ndim == 2 else x])
def test_values_are_copied_whatever_their_layout(form) -> None:
    target, values = tree(), {name: form(value) for name, value in tree(1).items()}
    strides = {name: value.stride() for name, value in target.items()}
    copy_(target, values | {"not in the target": torch.zeros(())})
    assert all(torch.equal(value, values[name]) for name, value in target.items())
    assert {name: value.stride() for name, value in target.items()} == strides


def test_values_are_cast_to_the_type_of_the_target() -> None:
    target = [torch.zeros(2), torch.zeros(2, dtype=torch.int64)]
    copy_tensors_(target, [torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 4.0])])
    assert target[0].tolist() == [1, 2]
    assert target[1].tolist() == [3, 4]


def test_copies_need_as_many_values_as_targets() -> None:
    with pytest.raises(ValueError, match="zip"):
        copy_tensors_([torch.zeros(2)], [])
