"""Models that are evaluated at once get the numbers that each gets alone, on shared and on separate data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

import pactune as pt
from pactune.problem.data import Source, as_source
from pactune.stacking.requests import EvaluationRequest
from pactune.stacking.stacked import StackedModels


def request(problem: pt.Problem, source: Source) -> EvaluationRequest:
    return EvaluationRequest(problem, {"": source}, problem.parameters(), problem.buffers(), problem.hyperparameters())


@pytest.mark.parametrize("shared", [True, False])
def test_evaluation_at_once_is_that_of_each_model(
    shared: bool, make: Callable[..., pt.Tuner], linear: Callable[..., Any], classes: Callable[..., Any]
) -> None:
    problems = [make(linear(seed)).problem for seed in range(3)]
    sources = [as_source(classes(9, seed), role="test", device=problems[0].device) for seed in range(3)]
    sources = sources[:1] * 3 if shared else sources
    found = StackedModels(list(map(request, problems, sources))).evaluate("")
    for problem, source, at_once in zip(problems, sources, found, strict=True):
        alone = problem.evaluate(source)
        assert at_once.risk == pytest.approx(alone.risk, rel=1e-5)
        assert at_once.metrics == pytest.approx(alone.metrics, rel=1e-5)


def test_each_training_set_is_judged_by_the_training_loss(
    make: Callable[..., pt.Tuner], linear: Callable[..., Any], classes: Callable[..., Any]
) -> None:
    def valid_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def train_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        return 3 * valid_loss(model, batch, hyper)

    losses = {"train_loss": train_loss, "valid_loss": valid_loss}
    problems = [make(linear(seed), train=classes(12, seed), **losses).problem for seed in range(2)]
    found = StackedModels([request(problem, problem.train) for problem in problems]).evaluate("")
    for problem, at_once in zip(problems, found, strict=True):
        assert at_once.risk == pytest.approx(problem.evaluate(problem.train).risk, rel=1e-5)
