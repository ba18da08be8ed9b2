"""What optimizers remember is known before they have taken a step, so that what is loaded can be checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pactune.tracking.optimizers import describe_memory, fits_memory

KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"foreach": True}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "Rprop": (torch.optim.Rprop, {}),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_remembered_fits_what_was_foretold(name: str) -> None:
    kind, options = KINDS[name]
    shapes: list[tuple[int, ...]] = [(3, 4), (), (1, 5), (2,)]
    leaves = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    optimizer = kind(leaves, lr=0.1, **options)  # type: ignore[call-arg]
    expected = describe_memory(optimizer)
    assert expected is not None
    assert all(not leaf.any() for leaf in leaves), "the optimizer itself takes no step"
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for leaf in leaves:
            leaf.grad = torch.randn(leaf.shape, generator=generator)
        optimizer.step()
    state = optimizer.state_dict()["state"]
    for key, held in state.items():
        assert fits_memory(held, expected[str(key)], list(shapes[key]))
        for slot in held:
            lacking = {other: value for other, value in held.items() if other != slot}
            assert not fits_memory(lacking, expected[str(key)], list(shapes[key]))
            if held[slot] is not None:
                for wrong in (None, "x", torch.zeros(7), torch.tensor(-1.0) if slot == "step" else torch.zeros(9, 9)):
                    assert not fits_memory({**held, slot: wrong}, expected[str(key)], list(shapes[key]))


def test_optimizers_of_which_nothing_is_known() -> None:
    class Own(torch.optim.SGD):
        pass

    leaf = torch.zeros(2, requires_grad=True)
    assert describe_memory(Own([leaf], lr=0.1)) is None
    assert describe_memory(torch.optim.LBFGS([leaf])) is None
