"""A first-order penalty method: the λ-derivative of the gap between two training risks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pactune.checks import POSITIVE, check_count, check_flag, check_number
from pactune.hypergradient.base import ChainContext, ChainEstimator
from pactune.hypergradient.records import InnerState, StepRecord, ValueAndGradient
from pactune.hypergradient.stationary_point import StationaryChainEstimator, StationaryEstimator
from pactune.hypergradient.train_risk import Batches, MeanTrainRisk, check_batches, mean_train_risk
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, add, axpy, scale, sub

__all__ = ["GapIterates", "ValueFunctionGap", "valid_risk_at"]


@dataclass(frozen=True)
class ValueFunctionGap(StationaryEstimator):
    """∂R_V/∂λ(θ_γ) + γ(∂R_T/∂λ(θ_γ) − ∂R_T/∂λ(φ)): the penalty γ(R_T(θ) − min R_T) in place of the lower problem.

    From θ_T, φ takes gradient steps on R_T and θ_γ on R_T + R_V/γ, as in V-PBGD (Shen and Chen 2023) and F²SA (Kwon et
    al. 2023). All derivatives are of first order. At a stationary θ_T the gradient tends to that of
    `Implicit(Neumann(steps − 1, alpha))` as γ → ∞, and to that of `Implicit` as `steps` → ∞ too; at a finite γ it is
    biased by a term of the order of 1/γ. Rounding is amplified by γ, so take γ ≤ 1e3 in float32. Choose it if
    second derivatives are missing or do not fit into memory, and training comes near a minimum.

    Args:
        gamma: γ.
        steps: gradient steps of φ and of θ_γ per outer step. A step takes two training gradients and ∇R_V.
        alpha: the size of these steps; None takes the inner learning rate.
        batches: the rows of R_T: None for the mini-batch of the last step, a number of fresh mini-batches, or "all".
        warm_start: start θ_γ − φ where it ended in the last outer step. One step per outer step then suffices.
    """

    gamma: float
    steps: int
    alpha: float | None = None
    batches: Batches = None
    warm_start: bool = False

    first_order = True
    takes_prox = False

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, POSITIVE)
        check_count("steps", self.steps)
        check_number("alpha", self.alpha, POSITIVE, none="for the inner learning rate")
        check_batches(self.batches)
        check_flag("warm_start", self.warm_start)

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """True with a warm start."""
        return self.warm_start

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _GapChainEstimator(self, trajectory, context)

    def iterates(
        self, trajectory: Trajectory, context: ChainContext, last: StepRecord, state: InnerState
    ) -> GapIterates:
        """Return θ_γ and φ of a round that ends at `state`, and the training risk on which they are found."""
        risk = mean_train_risk(trajectory, context, last.data, self.batches)
        alpha = self.alpha if self.alpha is not None else trajectory.numbers(last.state, last.data)["lr"]
        inputs = context.inputs
        lower = upper = state.params
        if self.warm_start and inputs is not None and inputs.memory:
            upper = axpy(1 / self.gamma, inputs.memory, upper)
        for _ in range(self.steps):
            by_train = risk.value_and_gradient(state._replace(params=upper)).by_params
            valid = valid_risk_at(trajectory, context, state._replace(params=upper), context.hyper, last)
            upper = axpy(-alpha, axpy(1 / self.gamma, valid.by_params, by_train), upper)
            lower = axpy(-alpha, risk.value_and_gradient(state._replace(params=lower)).by_params, lower)
        return GapIterates(state._replace(params=upper), state._replace(params=lower), risk)


class GapIterates(NamedTuple):
    """The two points of the gap: θ_γ, φ, and the training risk."""

    upper: InnerState
    lower: InnerState
    risk: MeanTrainRisk


class _GapChainEstimator(StationaryChainEstimator):
    def __init__(self, settings: ValueFunctionGap, trajectory: Trajectory, context: ChainContext) -> None:
        super().__init__(trajectory, context)
        self._settings = settings

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        assert self._last is not None
        gamma = self._settings.gamma
        upper, lower, risk = self._settings.iterates(self._trajectory, self._context, self._last, state)
        there, here = risk.value_and_gradient(upper), risk.value_and_gradient(lower)
        valid = valid_risk_at(self._trajectory, self._context, upper, self._context.hyper, self._last)
        self._notes = {"value_gap": there.value - here.value}
        if self._settings.warm_start:
            self._memory = scale(gamma, sub(upper.params, lower.params))
        return add(valid.by_hyper, scale(gamma, sub(there.by_hyper, here.by_hyper)))


def valid_risk_at(
    trajectory: Trajectory, context: ChainContext, state: InnerState, hyper: Params, last: StepRecord
) -> ValueAndGradient:
    """Return R_V with its direct derivatives, on the rows and with the random numbers of the risk at θ_T."""
    assert context.inputs is not None
    key = last.data.keys[1] if last.data.keys else None
    return trajectory.final_risk(state, hyper, context.inputs.risk_batches, key=key)
