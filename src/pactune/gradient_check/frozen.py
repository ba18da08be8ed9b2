"""A slow, obvious reference: what every estimator differentiates, written as a function of λ and nothing else.

An estimator that holds θ_a fixed when it differentiates a function of θ_t promises the derivative, at λ' = λ, of the
function evaluated on the trajectory that starts at θ_a and runs to t under λ'. `frozen_risk` and `frozen_regularizer`
evaluate exactly that, step by step and summand by summand, without any derivative; finite differences of them judge
every estimator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator
from pactune.hypergradient.records import InnerState, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.plan import RoundPlan
from pactune.streams import forked_rng
from pactune.trees import Params, add, sub

__all__ = ["Exact", "Path", "frozen_regularizer", "frozen_risk", "path_sums", "record_path"]


class Exact(Estimator):
    """The derivative of J itself, for reference only: nothing is held fixed, and every step is the one that was run."""

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Raise: a reference is evaluated, and not put to work."""
        raise NotImplementedError("Exact names a derivative that finite differences find")

    def reach(self, inner_steps: int) -> int:
        """Return T."""
        return inner_steps

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return 0."""
        return 0


class Path(NamedTuple):
    """One chain's trajectory under the present λ, `hyper`."""

    drawn: Params | None
    states: list[InnerState]
    step_data: list[StepData]
    hyper: Params


def record_path(plan: RoundPlan, chains: ChainStates, hyper: Params) -> list[Path]:
    """Run the next round of some chains without derivatives and keep every state; the chains do not move."""
    starts, drawn = chains.starts(hyper)
    first = chains.rounds * plan.inner_steps
    step_data = [chains.inputs.step_data(first + t, chains.chains) for t in range(plan.inner_steps)]
    paths = []
    for chain, start in enumerate(starts):
        own = [data[chain] for data in step_data]
        states = [start]
        for data in own:
            states.append(_advance(plan.trajectory, states[-1], hyper, data))
        paths.append(Path(drawn[chain] if drawn is not None else None, states, own, hyper))
    return paths


def path_sums(plan: RoundPlan, paths: list[Path], hyper: Params) -> torch.Tensor:
    """Return Σ_t q_t of every chain, each summand on the piece of trajectory that is differentiated."""
    return torch.stack([_sum(plan, path, hyper) for path in paths])


def frozen_risk(plan: RoundPlan, paths: list[Path], hyper: Params) -> torch.Tensor:
    """Return the mean over chains of the risk, on the piece of trajectory that its estimator differentiates."""
    return torch.stack([_risk(plan, path, hyper) for path in paths]).mean()


def frozen_regularizer(plan: RoundPlan, paths: list[Path], here: torch.Tensor, hyper: Params) -> torch.Tensor:
    """Return √Y to first order around the λ of the paths, evaluated at `hyper`; 0 without a path term.

    Every summand is evaluated on the piece of trajectory that its estimator differentiates. The root of the sum is
    linearised at `here`, the `path_sums` of the λ that was run, since an estimator divides by their root.
    """
    objective = plan.trajectory.objective
    if not objective.has_path:
        return torch.zeros((), dtype=plan.trajectory.problem.dtype, device=plan.trajectory.problem.device)
    there = path_sums(plan, paths, hyper)
    if objective.chain_mean == "outside":
        return (here.sqrt() + (there - here) / (2 * here.sqrt())).mean()
    root = here.mean().sqrt()
    return root + (there - here).mean() / (2 * root)


def _risk(plan: RoundPlan, path: Path, hyper: Params) -> torch.Tensor:
    state = _rerun(plan, path, plan.risk_estimator, plan.inner_steps, hyper)
    key = path.step_data[-1].keys
    with forked_rng(plan.trajectory.problem.device):
        return plan.trajectory.final_risk(state, hyper, key=key[1] if key else None).value


def _sum(plan: RoundPlan, path: Path, hyper: Params) -> torch.Tensor:
    """Return Σ_t q_t, each on its own piece of trajectory."""
    terms, anchors, state = (
        [],
        [plan.path_estimator.anchor(t, plan.inner_steps) for t in range(len(path.step_data))],
        None,
    )
    true_steps = isinstance(plan.path_estimator, Exact) or plan.trajectory.dynamics.differentiable
    for t, data in enumerate(path.step_data):
        if state is not None and true_steps and anchors[t] == anchors[t - 1]:  # the same piece of trajectory, longer
            state = _advance(plan.trajectory, state, hyper, path.step_data[t - 1])
        else:
            state = _rerun(plan, path, plan.path_estimator, t, hyper)
        with forked_rng(plan.trajectory.problem.device):
            seen = plan.trajectory.observe(state, hyper, data, by_hyper=False, by_params=False)
        assert seen.summand is not None
        terms.append(seen.summand)
    return torch.stack(terms).sum()


def _rerun(plan: RoundPlan, path: Path, estimator: Estimator, t: int, hyper: Params) -> InnerState:
    """Return θ_t on the trajectory that starts at the estimator's anchor and runs under `hyper`.

    Where the dynamics cannot be differentiated, an estimator differentiates another step in its place. Then θ_t moves
    by what that step moves by. `Exact` always takes the true steps.
    """
    anchor = estimator.anchor(t, plan.inner_steps)
    state, problem = path.states[anchor], plan.trajectory.problem
    if anchor == 0 and path.drawn is not None and problem.has_initial and estimator.reach(plan.inner_steps):
        reaches = t <= estimator.reach(plan.inner_steps)
        state = state._replace(params=problem.initial(path.drawn, hyper)) if reaches else state
    form = plan.trajectory.dynamics.pull_back_form()
    if anchor < t and form is not plan.trajectory.dynamics and not isinstance(estimator, Exact):
        return _moved(replace(plan.trajectory, dynamics=form), path, t, hyper)
    for data in path.step_data[anchor:t]:
        state = _advance(plan.trajectory, state, hyper, data)
    return state


def _moved(form: Trajectory, path: Path, t: int, hyper: Params) -> InnerState:
    """Return θ_t plus the change of a step in the place of the last one, from the λ that was run to `hyper`."""
    start, data = path.states[t - 1]._replace(slots={}), path.step_data[t - 1]
    there, here = (_advance(form, start, lambdas, data).params for lambdas in (hyper, path.hyper))
    return path.states[t]._replace(params=add(path.states[t].params, sub(there, here)))


def _advance(trajectory: Trajectory, state: InnerState, hyper: Params, data: StepData) -> InnerState:
    with forked_rng(trajectory.problem.device):
        seen = trajectory.observe(state, hyper, data, by_hyper=False, by_params=False)
        return trajectory.advance(state, hyper, data, seen)
