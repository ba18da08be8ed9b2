"""How long segments are: all of a few steps and ⌈√K⌉ of more unless given, and where the last one of a round begins."""

from __future__ import annotations

import math

import pytest

import pactune as pt
from pactune.hypergradient.stored_steps import FEW_STEPS, check_segment, last_segment, root_segment


@pytest.mark.parametrize("steps", range(1, 40))
def test_the_default_length_is_the_root_rounded_up(steps: int) -> None:
    root = math.isqrt(steps)
    rounded = root if root**2 == steps else root + 1
    assert root_segment(None, steps) == (steps if steps <= FEW_STEPS else rounded)


@pytest.mark.parametrize(("segment", "steps", "length"), [(None, 0, 1), (7, 100, 7), (1, 100, 1), (200, 100, 200)])
def test_a_length_that_is_given_is_taken(segment: int | None, steps: int, length: int) -> None:
    assert root_segment(segment, steps) == length


@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize("segment", [1, 4, 10])
@pytest.mark.parametrize("steps", [11, 12, 13])
def test_the_last_segment_begins_at_its_last_multiple(begin: int, segment: int, steps: int) -> None:
    assert last_segment(begin, segment, steps) == list(range(begin, steps, segment))[-1]


@pytest.mark.parametrize("segment", [0, -1, 1.5, True, "4"])
def test_a_length_that_is_no_positive_whole_number_is_refused(segment: object) -> None:
    with pytest.raises(pt.SettingError, match="`segment` must be a whole number"):
        check_segment(segment)


@pytest.mark.parametrize("segment", [None, 1, 2])
def test_a_positive_length_passes(segment: object) -> None:
    check_segment(segment)
