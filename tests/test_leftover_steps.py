"""The steps that fill no recorded segment are recorded one by one: measured ones and others apart."""

from __future__ import annotations

from collections.abc import Callable

import torch

import pactune as pt
from pactune.engines import Traced


def test_a_measured_step_is_not_run_in_place_of_an_unmeasured_one(make: Callable[..., pt.Tuner]) -> None:
    """15 steps before the last: three segments of four, then a measured, an unmeasured and a measured step."""
    found = []
    for engine in (Traced(after=0), "eager"):
        tuner = make(inner_steps=16, path_stride=2, engine=engine)
        value = tuner.hypergradient()
        found.append((value, [parameter.grad for parameter in tuner.problem.hyper.parameters()]))
    (traced, by_traced), (eager, by_eager) = found
    assert traced == eager
    assert all(torch.equal(a, b) for a, b in zip(by_traced, by_eager, strict=True))
