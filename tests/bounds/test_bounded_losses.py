"""Bounded losses stay between 0 and their bound, which must be positive."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import pactune as pt
from pactune.bounds import ClippedCrossEntropy, ZeroOne


@pytest.mark.parametrize("largest", [0.0, -1.0, math.nan])
def test_a_bound_that_is_not_positive_is_refused(largest: float) -> None:
    with pytest.raises(pt.SettingError, match="`largest` must be a positive"):
        ClippedCrossEntropy(largest)


def test_rows_are_clipped_at_the_bound_and_left_alone_below() -> None:
    scores, target = torch.tensor([[9.0, 0.0, 0.0], [0.5, 0.0, 0.0]]), torch.tensor([1, 0])
    plain = functional.cross_entropy(scores, target, reduction="none")
    assert plain[0] > 4 > plain[1]
    assert torch.equal(ClippedCrossEntropy(4.0).rows(scores, target), torch.stack([torch.tensor(4.0), plain[1]]))
    assert torch.equal(ClippedCrossEntropy().rows(scores, target), ClippedCrossEntropy(4.0).rows(scores, target))


def test_error_rate_counts_the_wrong_rows() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 3.0, 2.0]])
    assert ZeroOne().rows(scores, torch.tensor([0, 0, 1])).tolist() == [0.0, 1.0, 0.0]
