"""The reference for `ValueFunctionGap`: its penalised risk as a function of λ, at the points of the estimator."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pactune.gradient_check.anchored import RecordedChain
from pactune.hypergradient.base import ChainContext
from pactune.hypergradient.records import StepRecord
from pactune.hypergradient.value_gap import ValueFunctionGap, valid_risk_at
from pactune.rounds.plan import RoundPlan
from pactune.streams import forked_rng
from pactune.trees import Params

__all__ = ["gap_function"]


def gap_function(plan: RoundPlan, path: RecordedChain) -> Callable[[Params], Tensor]:
    """Return λ ↦ R_V(θ_γ, λ) + γ(R_T(θ_γ, λ) − R_T(φ, λ)), with θ_γ and φ found at the recorded λ."""
    estimator, trajectory, device = plan.risk_estimator, plan.trajectory, plan.trajectory.problem.device
    assert isinstance(estimator, ValueFunctionGap)
    gamma, last = estimator.gamma, StepRecord(path.states[-2], path.step_data[-1], path.hyper)
    context = ChainContext(path.hyper, None, plan.inner_steps, inputs=path.inputs)
    with forked_rng(device):
        upper, lower, risk = estimator.iterates(trajectory, context, last, path.states[-1])

    def value(at: Params) -> Tensor:
        with forked_rng(device):
            valid = valid_risk_at(trajectory, context, upper, at, last).value
            there, here = (risk.at(at).value_and_gradient(state).value for state in (upper, lower))
            return valid + gamma * (there - here)

    return value
