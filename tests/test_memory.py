"""Memory of K = 0 and K = 1 does not grow with the number of inner steps, and that of a whole horizon like its root."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pactune as pt

pytestmark = pytest.mark.slow

SIZE = 20_000  # parameters; 80 kB a copy, so that one copy more per step would show


def live_bytes() -> int:
    """Return the bytes of all tensors that are alive, each storage once."""
    gc.collect()
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if _plain(t)}
    return sum(found.values())


def _plain(value: object) -> bool:
    """Return True for a tensor with a storage; a sparse one of another test may still be alive."""
    return isinstance(value, Tensor) and type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided


def bytes_by_step(
    estimator: Any, inner: Any, at: tuple[int, int], objective: Any = None, risk: Any = None
) -> list[int]:
    """Return the live bytes at two steps of one round, seen from inside the training loss."""
    model = nn.Linear(SIZE // 2, 2, bias=False)
    hyper = pt.WeightDecay(model, init=0.1)
    seen: list[int] = []
    measured = dict.fromkeys(at, False)

    def schedule(step: int) -> float:
        if step in measured and not measured[step]:
            measured[step] = True
            seen.append(live_bytes())
        return 0.01

    x, y = torch.randn(2, SIZE // 2), torch.tensor([0, 1])
    problem = pt.Problem(model, hyper, train=(x, y), valid=(x, y), loss=nn.functional.cross_entropy)
    tuner = pt.Tuner(
        problem,
        inner=inner(schedule),
        inner_steps=max(at) + 1,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=objective or pt.PACBayes(0.1),
        hypergradient=risk or pt.Truncated(1),
        path_hypergradient=estimator,
    )
    tuner.hypergradient()
    return seen


@pytest.mark.parametrize("estimator", [pt.Truncated(0), pt.Truncated(1), pt.Truncated(3)], ids=str)
@pytest.mark.parametrize("inner", [pt.SGD, pt.Adam])
def test_memory_is_flat_in_the_number_of_steps(estimator: Any, inner: Any) -> None:
    early, late = bytes_by_step(estimator, inner, (5, 50))
    assert late <= early + 4 * SIZE, "one copy of the parameters is allowed for chance; 45 would be a leak"


def test_the_measure_sees_growth() -> None:
    early, late = bytes_by_step(pt.Windowed(51), pt.SGD, (5, 50))
    assert late > early + 40 * 4 * SIZE


@pytest.mark.parametrize("risk", [pt.Truncated(81), pt.Windowed(81)], ids=str)
@pytest.mark.parametrize(("inner", "copies"), [(pt.SGD, 1), (pt.Adam, 3)])
def test_memory_of_a_whole_horizon_grows_like_its_root(risk: Any, inner: Any, copies: int) -> None:
    early, late = bytes_by_step(pt.Truncated(0), inner, (1, 80), pt.ValidationRisk(), risk)
    states, graphs = 9, 9  # every ninth state, and the last nine steps with their gradients
    assert late <= early + (states * copies + graphs * (copies + 1) + 2) * 4 * SIZE, "79 states would be all"


def test_whole_horizon_keeps_every_step_when_told_to() -> None:
    risk = pt.Windowed(81, segment=1)
    early, late = bytes_by_step(pt.Truncated(0), pt.SGD, (1, 80), pt.ValidationRisk(), risk)
    assert late > early + 75 * 4 * SIZE
