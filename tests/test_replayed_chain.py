"""How closely a replayed or recorded step must agree with the eager one."""

from __future__ import annotations

import pytest
import torch

from pactune.engines import replayed_chain, traced
from pactune.engines.replayed_chain import carries_agree
from pactune.hypergradient.records import InnerState
from pactune.rounds.chain import Carry


def carry(params: float, moment: float, dtype: torch.dtype) -> Carry:
    """Return a carry whose parts start at 0, so that each value is the move of its part."""
    trees = [{"w": torch.full((4,), value, dtype=dtype)} for value in (params, moment)]
    state = InnerState(trees[0], {"first": trees[1]}, {}, 0)
    return Carry(state, torch.zeros((), dtype=dtype), {}, {})


@pytest.mark.parametrize(
    ("dtype", "params", "moment", "agree"),
    [
        (torch.float32, 7e-3, 2e-3, True),  # the largest gaps of correct ResNets on an H200
        (torch.float32, 2e-2, 0.0, False),
        (torch.float32, 0.0, 2e-2, False),
        (torch.float64, 1e-7, 0.0, True),
        (torch.float64, 1e-5, 0.0, False),
        (torch.float64, 0.0, 1e-7, False),
    ],
)
def test_a_gap_relative_to_the_move(dtype: torch.dtype, params: float, moment: float, agree: bool) -> None:
    found, wanted = carry(1 + params, 1 + moment, dtype), carry(1.0, 1.0, dtype)
    assert carries_agree(found, wanted, carry(0.0, 0.0, dtype)) == agree


def stacked(*moves: float) -> Carry:
    """Return the carry of stacked runs whose parameters moved by these numbers."""
    params = {"w": torch.tensor(moves)[:, None].expand(-1, 4).clone(), "b": torch.tensor(moves)}
    return Carry(InnerState(params, {}, {}, 0), torch.tensor(moves), {}, {})


@pytest.mark.parametrize(
    ("found", "agree"),
    [
        ((1.0, float("nan"), 2.0), True),
        ((1.0, float("inf"), 2.0), True),
        ((1.0, 3e30, 2.0), True),  # its square is not finite
        ((1.0, 3.0, 2.0), False),
        ((1.1, float("nan"), 2.0), False),
        ((float("nan"), float("nan"), 2.0), False),
    ],
)
def test_a_run_that_diverges_does_not_speak_for_those_beside_it(found: tuple[float, ...], agree: bool) -> None:
    wanted, before = stacked(1.0, float("nan"), 2.0), stacked(0.0, 0.0, 0.0)
    assert carries_agree(stacked(*found), wanted, before) == agree


def test_runs_are_told_apart_only_where_all_of_them_together_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms of single runs take a kernel per tensor, and every round makes this comparison."""
    asked: list[int] = []
    monkeypatch.setattr(replayed_chain, "norms", lambda tree, axes: asked.append(axes))
    assert carries_agree(stacked(1.0, 2.0), stacked(1.0, 2.0), stacked(0.0, 0.0))
    assert not asked


@pytest.mark.parametrize(
    ("found", "agree"),
    [((1.0, float("nan")), True), ((2.0, float("nan")), False), ((float("nan"), float("nan")), False)],
)
def test_a_number_that_is_none_hides_no_other_difference(found: tuple[float, ...], agree: bool) -> None:
    assert traced._equal(torch.tensor(found), torch.tensor([1.0, float("nan")])) == agree
