"""Noise on the inputs of training mini-batches, and its part in `pt.tune`."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.dynamics import Averaged
from pactune.problem.data import as_source
from pactune.problem.data.noisy import NoisyInputs
from pactune.search.decays import NOISES, Scalars, candidates
from pactune.search.training import InnerLoop, averaged
from pactune.streams import Streams

tuning = importlib.import_module("pactune.search.tune")  # the package has a function of this name
CPU, STREAMS = torch.device("cpu"), Streams(0)
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def noisy(data: Any, spread: float = 0.5, size: int | None = None) -> NoisyInputs:
    return NoisyInputs(as_source(data, role="train", device=CPU, batch_size=size), spread)


def noise_of(source: NoisyInputs, step: int, streams: Streams = STREAMS) -> Tensor:
    batch = source.batch(step, streams, "train")
    found: Tensor = batch.data[0] - X[batch.numbers]
    return found


def test_every_step_has_fresh_noise_that_can_be_drawn_again() -> None:
    source = noisy((X, Y))
    assert not source.steady
    first, second = noise_of(source, 0), noise_of(source, 1)
    torch.testing.assert_close(first, noise_of(noisy((X, Y)), 0))
    assert not torch.allclose(first, second)
    torch.testing.assert_close(first, noise_of(source, 0, Streams(1)))  # the noise depends on no seed


def test_the_noise_has_the_spread() -> None:
    found = torch.stack([noise_of(noisy((X, Y), 0.5), step) for step in range(50)])
    # 6000 numbers: the standard error of a standard deviation of 0.5 is 0.5/√12000 < 0.005, of the mean 0.007
    assert abs(float(found.std()) - 0.5) < 0.02
    assert abs(float(found.mean())) < 0.03


def test_targets_and_evaluations_have_no_noise() -> None:
    source = noisy((X, Y))
    assert torch.equal(source.batch(0, STREAMS, "train").data[1], Y)
    for batches in (source.epoch(), source.evaluation(), source.risk_batches(0, STREAMS)):
        assert torch.equal(torch.cat([batch.data[0] for batch in batches]), X)
    assert torch.equal(source.first().data[0], X)


def test_targets_that_are_the_inputs_have_no_noise() -> None:
    first, second = noisy((X, X)).batch(0, STREAMS, "train").data
    assert torch.equal(second, X)
    assert not torch.equal(first, X)


def test_inputs_of_a_mapping_have_noise() -> None:
    found = noisy({"label": Y, "pixels": X}).batch(0, STREAMS, "train").data
    assert torch.equal(found["label"], Y)
    assert not torch.equal(found["pixels"], X)


def test_subsets_and_mini_batches_keep_the_noise() -> None:
    part = noisy((X, Y)).subset(torch.arange(10))
    assert part.rows == part.size == 10
    for source in (part, part.uncached(), part.with_risk_size(None)):
        assert not torch.equal(source.batch(0, STREAMS, "train").data[0], X[:10])
    batch = noisy((X, Y)).with_mini_batches(8).batch(0, STREAMS, "train")
    assert batch.rows == 8
    assert not torch.equal(batch.data[0], X[batch.numbers])


def test_the_spread_is_a_part_of_the_fingerprint() -> None:
    assert noisy((X, Y), 0.5).fingerprint() != noisy((X, Y), 0.6).fingerprint()
    assert "noise" in noisy((X, Y)).fingerprint()


def test_candidates_with_noise_are_of_one_kind() -> None:
    found = candidates(0.1, 2000, pulls=False, spread=2.0)
    with_noise = [one for one in found if one.noise]
    assert [one.noise for one in with_noise] == [2.0 * share for share in NOISES]
    assert {one.kind for one in with_noise} == {with_noise[0].kind} != {Scalars(0.0).kind}
    assert not any(one.noise for one in candidates(0.1, 2000, pulls=False))


def test_a_model_with_noise_is_an_average() -> None:
    loop = averaged(InnerLoop(pt.SGD(0.1), 20, 0))
    assert isinstance(loop.inner, Averaged)
    assert averaged(loop) is loop


def spreads(monkeypatch: pytest.MonkeyPatch, x: Tensor, **changes: Any) -> tuple[set[float], float]:
    """Return the spreads of noise in the search of `pt.tune`, and the one of the last run of a tuned model."""
    found, finals = set[float](), list[Any]()
    search, last = tuning.search_scalars, tuning.final_fit

    def heard(problem: Any, tried: Any, *rest: Any) -> Any:
        found.update(one.noise for one in tried)
        return search(problem, tried, *rest)

    def kept(problem: Any, final: Any, *rest: Any, **options: Any) -> Any:
        finals.append(final)
        return last(problem, final, *rest, **options)

    monkeypatch.setattr(tuning, "search_scalars", heard)
    monkeypatch.setattr(tuning, "final_fit", kept)
    monkeypatch.setattr(tuning, "compare", lambda *_: tuning_judgement())
    torch.manual_seed(0)
    settings: dict[str, Any] = {"loss": F.cross_entropy, "inner": pt.SGD(0.3), "inner_steps": 2, "progress": False}
    pt.tune(nn.Linear(x.shape[1], 2), (x, Y), **settings | changes)
    return found - {0.0}, finals[0].noise


def tuning_judgement() -> Any:
    from pactune.results.verdict import Verdict
    from pactune.search.comparison import Judgement

    return Judgement(tuning.TUNED, [], Verdict(None, "kept by the test"))


@pytest.mark.usefixtures("short_search")
def test_few_inputs_are_tried_with_noise_and_all_rows_get_less(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, last = spreads(monkeypatch, X)
    spread = float(X.double().var(0).mean().sqrt())
    assert tried == {share * spread for share in NOISES}
    # the models of the search train on three folds of five
    assert any(last == pytest.approx(math.sqrt(0.6) * one) for one in tried)


@pytest.mark.usefixtures("short_search")
@pytest.mark.parametrize("case", ["more inputs than rows", "hyperparameters of ones own"])
def test_others_have_no_noise(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = torch.randn(40, 50, generator=torch.Generator().manual_seed(1))
    changes = {} if case == "more inputs than rows" else {"hyper": pt.ExampleWeights(40)}
    assert spreads(monkeypatch, wide if not changes else X, **changes) == (set(), 0.0)
