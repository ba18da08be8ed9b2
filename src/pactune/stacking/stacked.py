"""The problem and the models of R runs, with a leading axis of length R in every tensor.

`torch.vmap` maps the risks, the penalties and the hooks over that axis. Derivatives are taken outside, of the sum over
runs. This is exact, because no run depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pactune.interrupts import check_interrupt
from pactune.problem import Problem
from pactune.problem.data import Batch, Source
from pactune.problem.data.joined import BatchJoiner, over_runs
from pactune.problem.evaluation import Evaluation
from pactune.problem.hooks import StepSizes
from pactune.problem.inner_problem import InnerProblem
from pactune.problem.modules import evaluating
from pactune.stacking.layers import layers_for
from pactune.stacking.requests import EvaluationRequest
from pactune.streams import Streams
from pactune.trees import Params, stack

__all__ = ["StackedModels", "StackedProblem", "StackedRows"]


class StackedRows(Source):
    """The data sets of the runs, which have equal numbers of rows.

    Attributes:
        join: joins the mini-batches of all runs.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources, self.steady = sources, all(source.steady for source in sources)
        self.join = BatchJoiner(compare=self.steady)

    @property
    def rows(self) -> int:
        """The number of rows of every run."""
        return self._sources[0].rows

    def batch(self, step: int, streams: Streams, role: str, reader: str = "") -> Batch:
        """Raise, since every run draws its own mini-batches."""
        raise NotImplementedError("the runs draw their own mini-batches")

    def epoch(self) -> Iterator[Batch]:
        """Raise, since every run reads its own rows."""
        raise NotImplementedError("the runs read their own rows")


class StackedProblem(InnerProblem):
    """The risks of R problems of one structure, each a vector of length R.

    Args:
        problems: the problem of every run. The first one computes for all: it is mapped over the leading axis.
    """

    train: StackedRows
    valid: StackedRows

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._first = problems[0]
        self._members = list(dict.fromkeys(problems))
        self.runs = (len(problems),)
        self.device, self.dtype = self._first.device, self._first.dtype
        self.train = StackedRows([problem.train for problem in problems])
        self.valid = StackedRows([problem.valid for problem in problems])

    @property
    def members(self) -> list[Problem]:
        """The problems that are stacked, each once."""
        return self._members

    @property
    def has_buffers(self) -> bool:
        """As the first problem."""
        return self._first.has_buffers

    @property
    def has_penalty(self) -> bool:
        """As the first problem."""
        return self._first.has_penalty

    @property
    def has_prox(self) -> bool:
        """As the first problem."""
        return self._first.has_prox

    @property
    def has_learning_rates(self) -> bool:
        """As the first problem."""
        return self._first.has_learning_rates

    @property
    def has_initial(self) -> bool:
        """As the first problem."""
        return self._first.has_initial

    @property
    def enters_losses(self) -> bool:
        """As the first problem."""
        return self._first.enters_losses

    @property
    def has_penalty_vjp(self) -> bool:
        """As the first problem."""
        return self._first.has_penalty_vjp

    @property
    def has_diagonal_penalty(self) -> bool:
        """As the first problem."""
        return self._first.has_diagonal_penalty

    @property
    def has_closed_steps(self) -> bool:
        """As the first problem."""
        return self._first.has_closed_steps

    def train_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_T of every run. Shape (R,)."""
        return self._risks(self._first.train_risk, params, hyper, buffers, batch)

    def valid_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_V of every run. Shape (R,)."""
        return self._risks(self._first.valid_risk, params, hyper, buffers, batch)

    def penalty(self, params: Params, hyper: Params) -> Tensor:
        """Return every run's penalty. Shape (R,)."""
        found: Tensor = torch.vmap(self._first.penalty)(params, hyper)
        return found

    def penalty_gradient(self, params: Params, hyper: Params) -> Params:
        """Return the θ-gradient of every run's penalty."""
        found: Params = torch.vmap(self._first.penalty_gradient)(params, hyper)
        return found

    def penalty_vjp(self, params: Params, hyper: Params, cotangent: Params) -> Params:
        """Return the λ-derivative of ⟨∇penalty, c⟩ of every run."""
        found: Params = torch.vmap(self._first.penalty_vjp)(params, hyper, cotangent)
        return found

    def penalty_product(self, params: Params, hyper: Params, vector: Params) -> Params:
        """Return ∇²penalty · v of every run."""
        found: Params = torch.vmap(self._first.penalty_product)(params, hyper, vector)
        return found

    def prox(self, params: Params, sizes: StepSizes, hyper: Params) -> Params:
        """Return every run's θ after its proximal steps."""
        found: Params = torch.vmap(self._first.prox, in_dims=(0, _axes(sizes), 0))(params, sizes, hyper)
        return found

    def envelope_gradient(self, params: Params, sizes: StepSizes, hyper: Params) -> Params:
        """Return the gradient of every run's Moreau envelope."""
        found: Params = torch.vmap(self._first.envelope_gradient, in_dims=(0, _axes(sizes), 0))(params, sizes, hyper)
        return found

    def learning_rates(self, params: Params, hyper: Params) -> Params:
        """Return every run's factors on the step size, broadcastable to the parameters."""
        found: Params = torch.vmap(self._first.learning_rates)(params, hyper)
        return {name: _widened(value, params[name]) for name, value in found.items()}

    def initial(self, params: Params, hyper: Params) -> Params:
        """Return every run's θ_0."""
        found: Params = torch.vmap(self._first.initial)(params, hyper)
        return found

    def _risks(
        self, risk: Callable[..., Tensor], params: Params, hyper: Params, buffers: Params, batch: Batch
    ) -> Tensor:
        def one(batch: Batch, params: Params, hyper: Params, buffers: Params) -> tuple[Tensor, Params]:
            with layers_for(self._first.model, self.device):
                return risk(params, hyper, buffers, batch), buffers

        values, after = over_runs(one, batch, params, hyper, buffers)
        buffers.update(after)
        found: Tensor = values
        return found


class StackedModels:
    """The models of many problems of one structure.

    Args:
        requests: the model of every problem, with its parameters.

    Attributes:
        params: θ of every problem.
    """

    def __init__(self, requests: Sequence[EvaluationRequest]) -> None:
        self._requests, self._problems = requests, [request.problem for request in requests]
        self.params = stack([request.params for request in requests])
        self._hyper = stack([request.hyper for request in requests])
        self._buffers = stack([request.buffers for request in requests])

    def evaluate(self, name: str) -> list[Evaluation]:
        """Evaluate each model on its data set of one name, as `Problem.evaluate` does.

        If all models share one data set, the same object, it is read once.
        """
        sources = [request.sources[name] for request in self._requests]
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
        first = self._problems[0]

        def one(batch: Batch, params: Params, hyper: Params, buffers: Params) -> Params:
            with layers_for(first.model, first.device):
                return first.readings(params, hyper, buffers, batch, general=general)

        found: Params = over_runs(one, batch, self.params, self._hyper, self._buffers)
        return found


def _axes(sizes: StepSizes) -> dict[str, int | None]:
    """Return the axis of the runs in every step size. A single number is that of all runs."""
    return {name: 0 if isinstance(size, Tensor) and size.ndim else None for name, size in sizes.items()}


def _widened(factor: Tensor, like: Tensor) -> Tensor:
    missing = like.ndim - factor.ndim
    return factor.reshape(len(factor), *[1] * missing, *factor.shape[1:])
