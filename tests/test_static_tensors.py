"""Static tensors of CUDA graphs: graphs of one place and form share them, and the last of these frees them."""

import gc
import weakref

import torch

from pactune.engines.static_tensors import SharedTensors, StaticData


def test_tensors_of_one_place_and_form_are_shared_and_loaded() -> None:
    shared = SharedTensors()
    first = shared.find(("carry", 0), [torch.zeros(2, 3), torch.zeros(4)])
    again = shared.find(("carry", 0), [torch.ones(2, 3), torch.ones(4)])
    assert again is first
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in first.tensors)


def test_another_place_or_form_has_its_own_tensors() -> None:
    shared = SharedTensors()
    first = shared.find("carry", [torch.zeros(2, 3)])
    others = [
        shared.find("λ", [torch.zeros(2, 3)]),
        shared.find("carry", [torch.zeros(3, 2).t()]),  # other strides
        shared.find("carry", [torch.zeros(2, 3, dtype=torch.float64)]),
        shared.find("carry", [torch.zeros(2, 3), torch.zeros(1)]),
    ]
    assert len({id(one) for one in [first, *others]}) == 5


def test_shared_tensors_live_as_long_as_a_graph_holds_them() -> None:
    shared = SharedTensors()
    found = shared.find("carry", [torch.zeros(2)])
    tensor = weakref.ref(found.tensors[0])
    del found
    gc.collect()
    assert tensor() is None


def test_data_that_was_loaded_last_time_is_not_copied_again() -> None:
    data, value = StaticData([torch.zeros(2)]), torch.ones(2)
    data.load([value])
    value.fill_(2.0)  # nobody may do this; it shows that the same tensor is not read twice
    data.load([value])
    assert data.tensors[0].tolist() == [1.0, 1.0]
    data.load([value.clone()])
    assert data.tensors[0].tolist() == [2.0, 2.0]
