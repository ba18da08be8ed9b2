"""Both gradients of a step of stacked runs in one backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pactune.hypergradient.records import GradientPair, InnerState, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.nested import map_tensors
from pactune.problem.data.joined import tensors_of
from pactune.problem.data.source import Batch
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params, leaves, split

__all__ = ["JointGradients"]


class JointGradients:
    """Both gradients of a step as the gradients of twice as many runs; the second half gets the validation rows.

    Small models spend their time on launching kernels. This form launches half as many.

    Attributes:
        batch: the training and the validation mini-batch, concatenated.
    """

    def __init__(self, problem: InnerProblem, batch: Batch) -> None:
        self._problem, self.batch = problem, batch

    @classmethod
    def of(cls, trajectory: Trajectory, train: Sequence[Batch], valid: Sequence[Batch]) -> JointGradients | None:
        """Return the joint form if both risks of the stacked runs are one function and their batches have one shape.

        Several runs that share all their rows have none, because each run would get a copy of them.
        """
        problem, objective = trajectory.problem, trajectory.objective
        compares = objective.has_path and objective.uses_valid_gradient and not objective.compares_default
        if not (compares and len(train) == len(valid) == 1 and problem.runs):
            return None
        if problem.runs != (1,) and not (train[0].stacked and valid[0].stacked):
            return None
        if problem.enters_losses or train[0].rows != valid[0].rows:
            return None
        parts = [_stacked_tensors(batch, problem.runs[0]) for batch in (train[0], valid[0])]
        if [tensor.shape for tensor in parts[0]] != [tensor.shape for tensor in parts[1]]:
            return None
        columns = iter([torch.cat(pair) for pair in zip(*parts, strict=True)])
        data = map_tensors(train[0].data, lambda _: next(columns))
        return cls(problem, Batch(data, train[0].rows, stacked=True))

    def __call__(self, state: InnerState, hyper: Params, data: StepData) -> GradientPair:
        """Return the two gradients at θ_t; `data.train` must be the joint batch."""
        params, lambdas = leaves(_twice(state.params)), _twice(hyper)
        buffers = {name: torch.cat([v, v]) for name, v in state.buffers.items()}  # the forward writes into them
        with torch.enable_grad():
            risks = self._problem.train_risk(params, lambdas, buffers, data.train)
            found = torch.autograd.grad(risks.sum(), list(params.values()), allow_unused=True)
        train, valid = _halves(split(found, params)[0])
        return GradientPair(train, valid, _halves(buffers)[0])  # a validation forward leaves the buffers as they are


def _twice(tree: Params) -> Params:
    """Return the tensors of the runs followed by the same again. Those of a single run need no copy."""
    return {name: v.expand(2, *v.shape[1:]) if len(v) == 1 else torch.cat([v, v]) for name, v in tree.items()}


def _halves(tree: Params) -> tuple[Params, Params]:
    halves = {name: value.chunk(2) for name, value in tree.items()}
    return {name: half[0] for name, half in halves.items()}, {name: half[1] for name, half in halves.items()}


def _stacked_tensors(batch: Batch, runs: int) -> list[Tensor]:
    """Return the tensors of a batch without its row numbers, each with the axis of the runs."""
    tensors = tensors_of(batch._replace(numbers=None))
    own = [batch.stacked and i not in batch.shared for i in range(len(tensors))]
    return [t if has_axis else t.expand(runs, *t.shape) for t, has_axis in zip(tensors, own, strict=True)]
