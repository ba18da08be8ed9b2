"""The common parts of estimators that take θ_T for a stationary point of training, and differentiate no step."""

from __future__ import annotations

from pactune.dynamics.base import Number
from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator
from pactune.hypergradient.records import Observation, StepRecord
from pactune.hypergradient.train_risk import ALL, Batches
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.inner_problem import InnerProblem
from pactune.trees import Params

__all__ = ["StationaryChainEstimator", "StationaryEstimator"]


class StationaryEstimator(Estimator):
    """The settings of such an estimator.

    Attributes:
        batches: the rows of R_T.
    """

    batches: Batches

    for_path = False
    stationary = True

    @property
    def fresh_batches(self) -> int:  # type: ignore[override]
        """The number of fresh mini-batches of a round."""
        return self.batches if isinstance(self.batches, int) else 0

    def recordable(self, problem: InnerProblem, round_index: int | None) -> bool:
        """Return False if a round reads all rows one by one, or has to find the support that a prox leaves."""
        return not problem.has_prox and (self.batches != ALL or problem.train.steady)

    def skippable_steps(self, inner_steps: int) -> int:
        """Return T − 1: only θ_T and the last mini-batch are needed."""
        return inner_steps - 1

    def reach(self, inner_steps: int) -> int:
        """Return 0: the estimator differentiates no step of the dynamics."""
        return 0

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return t: the estimator differentiates no step."""
        return t


class StationaryChainEstimator(ChainEstimator):
    """Such an estimator at work on one chain. Its `risk_gradient` fills `_notes` and `_memory`."""

    def __init__(self, trajectory: Trajectory, context: ChainContext) -> None:
        self._trajectory, self._context = trajectory, context
        self._last: StepRecord | None = None
        self._notes: Params = {}
        self._memory: Params = {}

    @property
    def _learning_rate(self) -> Number:
        """η of the last step."""
        assert self._last is not None
        return self._trajectory.numbers(self._last.state, self._last.data)["lr"]

    @property
    def notes(self) -> Params:
        """The numbers about the last `risk_gradient`."""
        return self._notes

    @property
    def memory(self) -> Params:
        """The tensors for the next round."""
        return self._memory

    def observe(self, record: StepRecord, observation: Observation) -> None:
        """Raise: the regularizer depends on the whole trajectory."""
        raise NotImplementedError("an estimator at a stationary point does not differentiate the regularizer")

    def add_step(self, record: StepRecord) -> None:
        """Keep the step if it is the last one."""
        self._last = record

    def path_gradient(self) -> Params:
        """Raise: the regularizer depends on the whole trajectory."""
        raise NotImplementedError("an estimator at a stationary point does not differentiate the regularizer")
