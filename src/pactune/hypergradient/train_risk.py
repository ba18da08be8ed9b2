"""The training risk as a mean over mini-batches: its gradient and its second derivatives at any θ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

import torch

from pactune.checks import check_count
from pactune.hypergradient.adjoints import vjp
from pactune.hypergradient.base import ChainContext
from pactune.hypergradient.records import InnerState, StepData, ValueAndGradient
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.data import Batch
from pactune.trees import Params, add, axpy, detach, leaves, sub

__all__ = ["ALL", "Batches", "Linearization", "MeanTrainRisk", "check_batches", "mean_train_risk"]

Batches = int | Literal["all"] | None
ALL = "all"
Product = Callable[[Params], Params]


class Linearization(NamedTuple):
    """∇R_T at some θ, and the products with its derivatives there.

    Attributes:
        gradient: returns ∇R_T. A kept graph holds it, so that it is not computed twice.
        hessian: v ↦ ∇²_θ R_T v.
        mixed: v ↦ vᵀ ∂²R_T/∂θ∂λ.
    """

    gradient: Callable[[], Params]
    hessian: Product
    mixed: Product


class MeanTrainRisk:
    """R_T as the mean over mini-batches, weighted by their rows, penalty included.

    Args:
        trajectory: the pure functions.
        hyper: λ.
        read: returns the mini-batches.
        keeps_graphs: True keeps the autograd graph of every mini-batch for all products. False computes it again at
            every product, with the memory of one mini-batch.
    """

    def __init__(
        self, trajectory: Trajectory, hyper: Params, read: Callable[[], Iterable[StepData]], *, keeps_graphs: bool
    ) -> None:
        self._trajectory, self._hyper, self._read, self._keeps_graphs = trajectory, hyper, read, keeps_graphs

    def at(self, hyper: Params) -> MeanTrainRisk:
        """Return the same risk under another λ."""
        return MeanTrainRisk(self._trajectory, hyper, self._read, keeps_graphs=self._keeps_graphs)

    def gradient(self, state: InnerState) -> Params:
        """Return ∇R_T."""
        return _mean(
            (self._trajectory.train_gradient(state, self._hyper, data), data.train.rows) for data in self._read()
        )

    def value_and_gradient(self, state: InnerState) -> ValueAndGradient:
        """Return R_T with its derivatives by θ and by λ, all of first order."""
        others, problem = iter(self._read()), self._trajectory.problem
        first = next(others)
        key, batches = first.keys[0] if first.keys else None, (data.train for data in chain([first], others))
        found = self._trajectory.final_risk(state, self._hyper, batches, key=key, risk=problem.train_risk)
        if not problem.has_penalty:
            return found
        params, hyper = leaves(state.params), leaves(self._hyper)
        with torch.enable_grad():
            penalty = problem.penalty(params, hyper)
        by_params, by_hyper = vjp([({"": penalty}, {"": torch.ones_like(penalty)})], params, hyper)
        value = found.value + penalty.detach()
        return ValueAndGradient(value, add(found.by_params, by_params), add(found.by_hyper, by_hyper))

    def linearize(self, state: InnerState) -> Linearization:
        """Return ∇R_T with its products."""
        if not self._keeps_graphs:
            return Linearization(
                lambda: self.gradient(state),
                lambda vector: _mean((part.hessian(vector), rows) for part, rows in self._parts(state)),
                lambda vector: _mean((part.mixed(vector), rows) for part, rows in self._parts(state)),
            )
        kept = list(self._parts(state))
        if len(kept) == 1:
            return kept[0][0]
        return Linearization(
            lambda: _mean((part.gradient(), rows) for part, rows in kept),
            lambda vector: _mean((part.hessian(vector), rows) for part, rows in kept),
            lambda vector: _mean((part.mixed(vector), rows) for part, rows in kept),
        )

    def _parts(self, state: InnerState) -> Iterator[tuple[Linearization, int]]:
        """Yield the linearization of every mini-batch, and its rows."""
        for data in self._read():
            yield _linearized(self._trajectory, state, self._hyper, data), data.train.rows


def _linearized(trajectory: Trajectory, state: InnerState, hyper: Params, data: StepData) -> Linearization:
    """Return ∇R_T on one mini-batch with its products, which share one graph."""
    params, lambdas = leaves(state.params), leaves(hyper)
    train = trajectory.train_gradient(state._replace(params=params), lambdas, data, graph=True)
    return Linearization(
        partial(detach, train),
        lambda vector: vjp([(train, vector)], params, retain=True)[0],
        lambda vector: vjp([(train, vector)], lambdas, retain=True)[0],
    )


def mean_train_risk(trajectory: Trajectory, context: ChainContext, last: StepData, batches: Batches) -> MeanTrainRisk:
    """Return the training risk of an estimator.

    Args:
        trajectory: the pure functions.
        context: λ, and the source of fresh mini-batches.
        last: the data of the last step.
        batches: the number of fresh mini-batches, "all" for all rows, or None for the mini-batch of the last step.
    """
    if batches is None or trajectory.problem.train.steady:
        return MeanTrainRisk(trajectory, context.hyper, lambda: [last], keeps_graphs=True)
    if batches == ALL:
        source = trajectory.problem.train
        read = lambda: (last._replace(train=batch) for batch in source.epoch())  # noqa: E731
        return MeanTrainRisk(trajectory, context.hyper, read, keeps_graphs=False)
    inputs = context.inputs
    assert inputs is not None
    drawn = [_with_batch(last, *inputs.fresh(i, int(batches))) for i in range(int(batches))]
    return MeanTrainRisk(trajectory, context.hyper, lambda: drawn, keeps_graphs=True)


def check_batches(batches: object) -> None:
    """Raise unless `batches` is None, "all" or a positive whole number."""
    if not (isinstance(batches, str) and batches == ALL):
        check_count("batches", batches, words='a whole number ≥ 1, "all"', none="for the mini-batch of the last step")


def _with_batch(last: StepData, batch: Batch, key: int | None) -> StepData:
    return last._replace(train=batch, keys=None if key is None else (key, key))


def _mean(parts: Iterable[tuple[Params, int]]) -> Params:
    """Return the mean of trees, weighted by their rows."""
    mean, rows = Params(), 0
    for part, count in parts:
        rows += count
        mean = axpy(count / rows, sub(part, mean), mean) if mean else part
    return mean
