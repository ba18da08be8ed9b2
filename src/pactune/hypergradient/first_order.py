"""Reverse mode without second derivatives of a loss: every training gradient is taken for a constant."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pactune.checks import check_count
from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.adjoints import StepArguments, pull_back_dynamics, pull_back_initial
from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator
from pactune.hypergradient.records import Adjoint, InnerState, Observation, StepRecord, ValueAndGradient
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, add, add_

__all__ = ["FirstOrder"]


@dataclass(frozen=True)
class FirstOrder(Estimator):
    """Differentiate through the last k inner steps and take every ∇R_T(θ_t) in them for a constant.

    This leaves out two terms of every step, −η∇²R_T and −η∂²R_T/∂θ∂λ of the loss, so no loss is differentiated twice.
    What remains is ∂R_V/∂λ, and the direct dependence of the steps on λ: initial parameters (first-order MAML, Finn et
    al. 2017), penalties and learning rates. With λ in the model's forward it is first-order DARTS (Liu et al. 2019).
    A λ that enters the training loss alone has no gradient, which is an error. The error is of the order of k η‖∇²R_T‖.
    Choose it if a second derivative is missing or too expensive, and the steps are few and short.

    For the validation risk only. Memory O(mk), without a graph.

    Args:
        k: the number of steps; None takes all steps of the round.
    """

    k: int | None = None

    for_path = False
    stackable = True
    first_order = True

    def __post_init__(self) -> None:
        check_count("k", self.k, 0, none="for all steps of the round")

    def skippable_steps(self, inner_steps: int) -> int:
        """Return T − k."""
        return inner_steps - self.reach(inner_steps)

    def reach(self, inner_steps: int) -> int:
        """Return k."""
        return inner_steps if self.k is None else self.k

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return t − k, or the start of the round."""
        return max(0, t - self.reach(inner_steps))

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise if k is larger than T, or if the dynamics cannot be differentiated."""
        if self.k is not None and self.k > inner_steps:
            raise SettingError(f"`{role}`: k must be between 0 and inner_steps={inner_steps}, got {self.k}")
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _FirstOrderChainEstimator(self.reach(context.inner_steps), trajectory, context)


class _FirstOrderChainEstimator(ChainEstimator):
    def __init__(self, k: int, trajectory: Trajectory, context: ChainContext) -> None:
        self._k, self._trajectory, self._context = k, trajectory, context
        self._steps: deque[StepRecord] = deque(maxlen=k)

    def observe(self, record: StepRecord, observation: Observation) -> None:
        raise NotImplementedError("FirstOrder does not differentiate the regularizer")

    def path_gradient(self) -> Params:
        raise NotImplementedError("FirstOrder does not differentiate the regularizer")

    def add_step(self, record: StepRecord) -> None:
        assert record.linearized is not None
        self._steps.append(record._replace(linearized=self._trajectory.without_values(record.linearized)))

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        total, adjoint = {name: value.clone() for name, value in final.by_hyper.items()}, Adjoint(final.by_params, {})
        for record in reversed(self._steps):
            by_hyper, adjoint = self._pull_back(record, adjoint)
            if by_hyper:
                add_(total, by_hyper)
        drawn, whole = self._context.drawn, self._k >= self._context.length
        if whole and drawn is not None and self._trajectory.problem.has_initial:
            total = add(total, pull_back_initial(self._trajectory.problem, drawn, self._context.hyper, adjoint.params))
        return total

    def _pull_back(self, record: StepRecord, adjoint: Adjoint) -> tuple[Params, Adjoint]:
        """Pull an adjoint back through the operations of the dynamics, and not through the training gradient."""
        assert record.linearized is not None
        dynamics, state, numbers = self._trajectory.dynamics, record.state, record.data.numbers
        arguments = StepArguments(
            state.params,
            state.slots if dynamics.differentiable else {},
            record.linearized.gradient,
            record.hyper,
            record.data.noise,
            dynamics.numbers(state.step) if numbers is None else numbers,
        )
        form = dynamics.pull_back_form()
        by_hyper, found = pull_back_dynamics(self._trajectory.problem, form, arguments, adjoint.params, adjoint.slots)
        return by_hyper, Adjoint(found.params, found.slots)
