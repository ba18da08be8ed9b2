"""Many runs at once: problem and objective of R runs as those of one, with a leading axis of length R in every tensor.

Only what mixes the elements of a run is mapped over that axis with `torch.vmap`: the risks, the penalties, the summand.
Derivatives are taken outside, of the sum over runs, which is exact because no run depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pactune.interrupts import check_interrupt
from pactune.objectives.base import MeasuredSummand, Objective, PathContext
from pactune.problem import Problem
from pactune.problem.data import Batch, Source
from pactune.problem.data.joined import BatchJoiner
from pactune.problem.evaluation import Evaluation
from pactune.problem.modules import evaluating
from pactune.streams import Streams
from pactune.trees import Params, leaves, split, stack

__all__ = ["StackedModels", "StackedObjective", "StackedProblem"]


class _StackedRows(Source):
    """A data set of every run, with equal numbers of rows."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources, self._join = sources, BatchJoiner()
        self.steady = all(source.steady for source in sources)

    @property
    def rows(self) -> int:
        return self._sources[0].rows

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        raise NotImplementedError("the runs draw their own mini-batches")

    def epoch(self) -> Iterator[Batch]:
        for batches in zip(*(source.epoch() for source in self._sources), strict=True):
            yield self._join(batches)


class StackedProblem(Problem):
    """The risks of R problems of one structure, each a vector of length R."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.__dict__.update(problems[0].__dict__)
        self.runs = (len(problems),)
        self.train = _StackedRows([problem.train for problem in problems])
        self.valid = _StackedRows([problem.valid for problem in problems])
        self._one, self._members = problems[0], list(dict.fromkeys(problems))

    @property
    def members(self) -> list[Problem]:
        """The problems that are stacked; chains of one run share theirs."""
        return self._members

    def train_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_T of every run. Shape (R,)."""
        return self._risks(self._one.train_risk, params, hyper, buffers, batch)

    def valid_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_V of every run. Shape (R,)."""
        return self._risks(self._one.valid_risk, params, hyper, buffers, batch)

    def penalty_gradient(self, params: Params, hyper: Params) -> Params:
        """Return the θ-gradient of every run's penalty."""
        found: Params = torch.vmap(self._one.penalty_gradient)(params, hyper)
        return found

    def penalty_vjp(self, params: Params, hyper: Params, cotangent: Params) -> Params:
        """Return the λ-derivative of ⟨∇penalty, c⟩ of every run."""
        found: Params = torch.vmap(self._one.penalty_vjp)(params, hyper, cotangent)
        return found

    def penalty_product(self, params: Params, hyper: Params, vector: Params) -> Params:
        """Return ∇²penalty · v of every run."""
        found: Params = torch.vmap(self._one.penalty_product)(params, hyper, vector)
        return found

    def learning_rates(self, params: Params, hyper: Params) -> Params:
        """Return every run's factors on the step size, broadcastable to the parameters."""
        found: Params = torch.vmap(self._one.learning_rates)(params, hyper)
        return {name: _widened(value, params[name]) for name, value in found.items()}

    def initial(self, params: Params, hyper: Params) -> Params:
        """Return every run's θ_0."""
        found: Params = torch.vmap(self._one.initial)(params, hyper)
        return found

    def _risks(
        self, risk: Callable[..., Tensor], params: Params, hyper: Params, buffers: Params, batch: Batch
    ) -> Tensor:
        def one(params: Params, hyper: Params, buffers: Params, data: Any, numbers: Any) -> tuple[Tensor, Params]:
            return risk(params, hyper, buffers, Batch(data, batch.rows, numbers)), buffers

        along = 0 if batch.stacked else None
        axes = (0, 0, 0, along, along if batch.numbers is not None else None)
        values, after = torch.vmap(one, in_dims=axes)(params, hyper, buffers, batch.data, batch.numbers)
        buffers.update(after)
        return values


class StackedModels:
    """The models of many problems of one structure, as they stand.

    Attributes:
        params: θ of every problem.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._problems = problems
        self.params = stack([problem.parameters() for problem in problems])
        self._hyper = stack([problem.hyperparameters() for problem in problems])
        self._buffers = stack([problem.buffers() for problem in problems])

    def evaluate(self, sources: Sequence[Source]) -> list[Evaluation]:
        """Evaluate each model on its own data set, as `Problem.evaluate` does.

        A data set that all share, the same object for each, is read once.
        """
        first, join = self._problems[0], BatchJoiner()
        general = first.is_general(sources[0])
        shared = all(source is sources[0] for source in sources)
        parts = [source.evaluation() for source in (sources[:1] if shared else sources)]
        rows, sums = 0, dict[str, Tensor]()
        with evaluating(first.model, first.device):
            for batches in zip(*parts, strict=True):
                check_interrupt()
                batch = batches[0] if shared else join(batches)
                found = self._readings(batch, general=general)
                rows += batch.rows
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + batch.rows * value.double()
        means = {name: (value / rows).tolist() for name, value in sums.items()}
        return [
            Evaluation(means[""][i], {name: values[i] for name, values in means.items() if name})
            for i in range(len(self._problems))
        ]

    def _readings(self, batch: Batch, *, general: bool) -> Params:
        def one(params: Params, hyper: Params, buffers: Params, data: Any, numbers: Any) -> Params:
            return self._problems[0].readings(params, hyper, buffers, Batch(data, batch.rows, numbers), general=general)

        along = 0 if batch.stacked else None
        axes = (0, 0, 0, along, along if batch.numbers is not None else None)
        mapped = torch.vmap(one, in_dims=axes)
        found: Params = mapped(self.params, self._hyper, self._buffers, batch.data, batch.numbers)
        return found


def _widened(factor: Tensor, like: Tensor) -> Tensor:
    missing = like.ndim - factor.ndim
    return factor.reshape(len(factor), *[1] * missing, *factor.shape[1:])


class StackedObjective(Objective):
    """The summand of every run."""

    def __init__(self, objective: Objective) -> None:
        self._one, self.zeta = objective, objective.zeta
        self.chain_mean, self.risk_of = objective.chain_mean, objective.risk_of
        self.has_path, self.uses_valid_gradient = objective.has_path, objective.uses_valid_gradient
        self.compares_default, self.uses_step_size = objective.compares_default, objective.uses_step_size

    def summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return q_t of every run. Shape (R,)."""
        return self._mapped(self._one.summand, train, valid, context)  # type: ignore[no-any-return]

    def measure(self, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True) -> MeasuredSummand:
        """Return q_t and its derivatives with respect to the two gradients, for every run."""
        if self._one.closed:
            measure = partial(self._one.measure, by_valid=by_valid)
            return self._mapped(measure, train, valid, context)  # type: ignore[no-any-return]
        with torch.enable_grad():
            a, b = leaves(train), leaves(valid)
            value = self.summand(a, b, context)
            found = torch.autograd.grad(value.sum(), [*a.values(), *b.values()], allow_unused=True)
        return MeasuredSummand(value.detach(), *split(found, a, b))

    @staticmethod
    def _mapped(function: Callable[..., Any], train: Params, valid: Params, context: PathContext) -> Any:
        def one(train: Params, valid: Params, factors: Params) -> Any:
            return function(train, valid, context._replace(factors=factors))

        return torch.vmap(one)(train, valid, context.factors)
