"""A slow, simple reference: the functions of λ that the estimators differentiate.

An estimator that holds the iterate θ_a (its anchor) fixed promises this derivative at λ' = λ: that of the function of
θ_t on the trajectory which starts at θ_a and runs to t under λ'. `anchored_risk` and `anchored_regularizer` evaluate
this function step by step and summand by summand, without any derivative. Every estimator is compared with finite
differences of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch

from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator
from pactune.hypergradient.records import EstimatorInputs, InnerState, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.data import Batch
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.plan import RoundPlan
from pactune.streams import forked_rng
from pactune.trees import Params, add, sub

__all__ = ["Exact", "RecordedChain", "anchored_regularizer", "anchored_risk", "path_sums", "record_chains"]


class Exact(Estimator):
    """The derivative of J itself, for reference only: nothing is held fixed, and all steps are the true ones."""

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Raise, since finite differences compute this derivative."""
        raise NotImplementedError("Exact names a derivative that finite differences find")

    def reach(self, inner_steps: int) -> int:
        """Return T."""
        return inner_steps

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return 0."""
        return 0


class RecordedChain(NamedTuple):
    """All states of one chain in a round under the present λ, `hyper`, and the inputs of its estimator."""

    drawn: Params | None
    states: list[InnerState]
    step_data: list[StepData]
    hyper: Params
    inputs: EstimatorInputs

    @property
    def risk_batches(self) -> Iterable[Batch]:
        """The rows for the risk at θ_T."""
        return self.inputs.risk_batches


def record_chains(plan: RoundPlan, chains: ChainStates, hyper: Params) -> list[RecordedChain]:
    """Run the next round without derivatives and record every state; `chains` does not change."""
    starts, drawn = chains.starts(hyper)
    first = chains.rounds * plan.inner_steps
    step_data = [chains.inputs.step_data(first + t, chains.chains) for t in range(plan.inner_steps)]
    risk_batches = chains.inputs.risk_batches(plan.trajectory.risk_sample, chains.rounds)
    paths, inputs = [], chains.estimator_inputs(risk_batches)
    for chain, start in enumerate(starts):
        own = [data[chain] for data in step_data]
        states = [start]
        for data in own:
            states.append(_advance(plan.trajectory, states[-1], hyper, data))
        paths.append(RecordedChain(drawn[chain] if drawn is not None else None, states, own, hyper, inputs[chain]))
    return paths


def path_sums(plan: RoundPlan, paths: list[RecordedChain], hyper: Params) -> torch.Tensor:
    """Return Σ_t q_t of every chain; each summand is evaluated on its trajectory from the anchor."""
    return torch.stack([_sum(plan, path, hyper) for path in paths])


def anchored_risk(plan: RoundPlan, paths: list[RecordedChain], hyper: Params) -> torch.Tensor:
    """Return the mean of the risk over chains, evaluated on the trajectory from the anchor."""
    return torch.stack([_risk(plan, path, hyper) for path in paths]).mean()


def anchored_regularizer(
    plan: RoundPlan, paths: list[RecordedChain], here: torch.Tensor, hyper: Params
) -> torch.Tensor:
    """Return √Y at `hyper`, to first order around the λ of the recorded chains; 0 without a path term.

    Every summand is evaluated on its trajectory from the anchor. The root of the sum is linearised at `here`, the
    `path_sums` at the recorded λ, since an estimator divides by their root.
    """
    objective = plan.trajectory.objective
    if not objective.has_path:
        return torch.zeros((), dtype=plan.trajectory.problem.dtype, device=plan.trajectory.problem.device)
    there = path_sums(plan, paths, hyper)
    if objective.chain_mean == "outside":
        return (here.sqrt() + (there - here) / (2 * here.sqrt())).mean()
    root = here.mean().sqrt()
    return root + (there - here).mean() / (2 * root)


def _risk(plan: RoundPlan, path: RecordedChain, hyper: Params) -> torch.Tensor:
    state = _rerun(plan, path, plan.risk_estimator, plan.inner_steps, hyper)
    key = path.step_data[-1].keys
    with forked_rng(plan.trajectory.problem.device):
        return plan.trajectory.final_risk(state, hyper, path.risk_batches, key=key[1] if key else None).value


def _sum(plan: RoundPlan, path: RecordedChain, hyper: Params) -> torch.Tensor:
    """Return Σ_t q_t of one chain; each summand is evaluated on its trajectory from the anchor."""
    terms, anchors, state = (
        [],
        [plan.path_estimator.anchor(t, plan.inner_steps) for t in range(len(path.step_data))],
        None,
    )
    true_steps = isinstance(plan.path_estimator, Exact) or plan.trajectory.dynamics.differentiable
    for t, data in enumerate(path.step_data):
        if state is not None and true_steps and anchors[t] == anchors[t - 1]:  # extend the same trajectory
            state = _advance(plan.trajectory, state, hyper, path.step_data[t - 1])
        else:
            state = _rerun(plan, path, plan.path_estimator, t, hyper)
        with forked_rng(plan.trajectory.problem.device):
            seen = plan.trajectory.observe(state, hyper, data, by_hyper=False, by_params=False)
        assert seen.summand is not None
        terms.append(seen.summand)
    return torch.stack(terms).sum()


def _rerun(plan: RoundPlan, path: RecordedChain, estimator: Estimator, t: int, hyper: Params) -> InnerState:
    """Return θ_t on the trajectory that starts at the estimator's anchor and runs under `hyper`.

    For an estimator of first order the training gradients are those of the recorded chain.

    If the dynamics cannot be differentiated, an estimator differentiates another step in place of the last one. Then
    θ_t changes by the change of that step. `Exact` always takes the true steps.
    """
    anchor = estimator.anchor(t, plan.inner_steps)
    state, problem = path.states[anchor], plan.trajectory.problem
    if anchor == 0 and path.drawn is not None and problem.has_initial and estimator.reach(plan.inner_steps):
        reaches = t <= estimator.reach(plan.inner_steps)
        state = state._replace(params=problem.initial(path.drawn, hyper)) if reaches else state
    form = plan.trajectory.dynamics.pull_back_form()
    if anchor < t and form is not plan.trajectory.dynamics and not isinstance(estimator, Exact):
        return _shifted(replace(plan.trajectory, dynamics=form), path, t, hyper)
    for place in range(anchor, t):
        data = path.step_data[place]
        if estimator.first_order:
            with forked_rng(problem.device):
                seen = plan.trajectory.observe_gradient(path.states[place], path.hyper, data)
            state = plan.trajectory.advance(state, hyper, data, seen)
        else:
            state = _advance(plan.trajectory, state, hyper, data)
    return state


def _shifted(form: Trajectory, path: RecordedChain, t: int, hyper: Params) -> InnerState:
    """Return θ_t plus the change of the substituted last step between the recorded λ and `hyper`."""
    start, data = path.states[t - 1]._replace(slots={}), path.step_data[t - 1]
    there, here = (_advance(form, start, lambdas, data).params for lambdas in (hyper, path.hyper))
    return path.states[t]._replace(params=add(path.states[t].params, sub(there, here)))


def _advance(trajectory: Trajectory, state: InnerState, hyper: Params, data: StepData) -> InnerState:
    with forked_rng(trajectory.problem.device):
        seen = trajectory.observe(state, hyper, data, by_hyper=False, by_params=False)
        return trajectory.advance(state, hyper, data, seen)
