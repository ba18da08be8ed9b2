"""Laws that hold for every input, searched by hypothesis."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pactune as pt
from pactune import trees
from pactune.objectives.base import clip
from pactune.problem.data import as_source
from pactune.streams import Streams
from pactune.trees import Params
from tests.quadratic import Quadratic

SEEDS = st.integers(0, 2**32 - 1)
NUMBERS = st.floats(-100, 100)
few = settings(max_examples=40, deadline=None, derandomize=True)


def tree(seed: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 2), "b": (3,), "s": ()}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def vector(a: Params) -> Tensor:
    return torch.cat([value.reshape(-1) for value in a.values()])


@few
@given(SEEDS, SEEDS, NUMBERS)
def test_trees_are_vectors(i: int, j: int, alpha: float) -> None:
    a, b = tree(i), tree(j)
    close = {"rtol": 1e-12, "atol": 1e-9}
    torch.testing.assert_close(vector(trees.add(a, b)), vector(a) + vector(b), **close)
    torch.testing.assert_close(vector(trees.sub(a, b)), vector(a) - vector(b), **close)
    torch.testing.assert_close(vector(trees.scale(alpha, a)), alpha * vector(a), **close)
    torch.testing.assert_close(vector(trees.axpy(alpha, a, b)), alpha * vector(a) + vector(b), **close)
    torch.testing.assert_close(trees.dot(a, b), vector(a) @ vector(b), **close)
    torch.testing.assert_close(trees.norm(a), vector(a).norm(), **close)


@few
@given(SEEDS)
def test_copies_share_what_they_say(seed: int) -> None:
    a = tree(seed)
    assert all(trees.clone(a)[n].data_ptr() != a[n].data_ptr() for n in a)
    assert all(trees.leaves(a)[n].data_ptr() == a[n].data_ptr() for n in a)
    assert all(value.requires_grad and value.is_leaf for value in trees.leaves(a).values())
    assert not any(value.requires_grad for value in trees.detach(trees.leaves(a)).values())
    parts = trees.split([*a.values(), None, None, None], a, a)
    assert torch.equal(vector(parts[0]), vector(a))
    assert not vector(parts[1]).any()


@few
@given(SEEDS, st.floats(1e-3, 1e3), st.floats(1e-6, 1e6))
def test_clipping_shortens_and_keeps_the_direction(seed: int, bound: float, size: float) -> None:
    gradient = trees.scale(size, tree(seed))
    clipped = clip(gradient, bound)
    before, after = trees.norm(gradient), trees.norm(clipped)
    assert after <= bound * (1 + 1e-12)
    torch.testing.assert_close(
        after, torch.minimum(before, torch.tensor(bound, dtype=torch.float64)), rtol=1e-9, atol=0
    )
    torch.testing.assert_close(trees.dot(gradient, clipped), before * after, rtol=1e-9, atol=0)


@few
@given(SEEDS, st.lists(st.integers(0, 10**6), min_size=1, max_size=4), st.lists(st.integers(0, 10**6), max_size=4))
def test_keys_are_functions_of_seed_and_path(seed: int, path: list[int], other: list[int]) -> None:
    streams = Streams(seed)
    assert streams.key(*path) == Streams(seed).key(*path)
    assert 0 <= streams.key(*path) < 2**63
    assert (streams.key(*path) == streams.key(*other)) == (path == other)
    assert streams.key(*path) != Streams(seed + 1).key(*path)
    assert streams.key("noise", *path) != streams.key("order", *path)
    draws = [torch.rand(3, generator=streams.generator(*path)) for _ in range(2)]
    assert torch.equal(*draws)


@few
@given(SEEDS, st.integers(1, 30), st.integers(1, 40), st.integers(0, 3))
def test_epochs_are_permutations(seed: int, rows: int, size: int, epoch: int) -> None:
    source = as_source(torch.arange(rows), role="train", device=torch.device("cpu"), batch_size=size)
    per_epoch = -(-rows // min(size, rows))
    batches = [source.batch(epoch * per_epoch + i, Streams(seed), "train") for i in range(per_epoch)]
    assert sorted(torch.cat([batch.data[0] for batch in batches]).tolist()) == list(range(rows))
    assert all(batch.rows == len(batch.data[0]) for batch in batches)


def gradient(seed: int, steps: int, momentum: float, estimator: Any) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    quadratic = Quadratic.draw(3, generator)
    model = quadratic.module(torch.randn(3, generator=generator, dtype=torch.float64))
    hyper = pt.WeightDecay(model, init=0.1)
    row = torch.zeros(1, 1, dtype=torch.float64)
    problem = pt.Problem(
        model,
        hyper,
        train=row,
        valid=row,
        train_loss=lambda m, b, h: quadratic.train_risk(m(b[0])[0]),
        valid_loss=lambda m, b, h: quadratic.valid_risk(m(b[0])[0]),
    )
    tuner = pt.Tuner(
        problem,
        inner=pt.SGD(0.1, momentum=momentum),
        inner_steps=steps,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.PACBayes(0.5),
        hypergradient=estimator,
        path_hypergradient=estimator,
    )
    tuner.hypergradient()
    found = hyper.values["theta"].grad
    assert found is not None
    return found


@settings(max_examples=10, deadline=None, derandomize=True)
@given(SEEDS, st.integers(1, 6), st.sampled_from([0.0, 0.5]))
def test_whole_horizons_agree(seed: int, steps: int, momentum: float) -> None:
    exact = gradient(seed, steps, momentum, pt.Truncated(steps))
    for estimator in (pt.Windowed(steps), pt.ForwardMode()):
        torch.testing.assert_close(gradient(seed, steps, momentum, estimator), exact, rtol=1e-9, atol=1e-12)
    if steps > 2:
        assert not torch.allclose(gradient(seed, steps, momentum, pt.Truncated(1)), exact, rtol=1e-6, atol=0)
