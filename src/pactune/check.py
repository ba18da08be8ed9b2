"""`check_hypergradient`: compare the estimate with float64 central differences on the user's own problem."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.checks import check_count, check_seed, check_type
from pactune.engine import Job, Lane, Plan, run_round
from pactune.errors import SettingError
from pactune.hypergradient import Implicit, Truncated, Windowed
from pactune.hypergradient.records import InnerState
from pactune.streams import Streams
from pactune.testing.frozen import Path, frozen_objective, path_sums, record_path
from pactune.trees import Params, axpy, clone, dot, norm, scale
from pactune.tuner import Tuner

__all__ = ["HypergradientCheck", "check_hypergradient"]

STEP = 2e-5  # the four-point rule errs by h⁴, rounding by 1e-16/h


class HypergradientCheck(NamedTuple):
    """Directional derivatives of J, one per random direction.

    Attributes:
        estimate: what the estimator gives.
        promised: central differences of what it is to give, with everything it holds fixed held fixed.
        exact: central differences of J itself, nothing held fixed.
        error: ‖estimate − promised‖/‖promised‖; rounding only when all is well. NaN for `Implicit` and for
            optimizers of `torch.optim`, which promise no derivative of a function that was run.
        truncation: ‖estimate − exact‖/‖exact‖; what the truncation leaves out.
    """

    estimate: Tensor
    promised: Tensor
    exact: Tensor
    error: float
    truncation: float

    @property
    def passed(self) -> bool:
        """Whether the estimate is what it promises to be, to 1e-5."""
        return self.error <= 1e-5


def check_hypergradient(tuner: Tuner, *, directions: int = 5, seed: int = 0) -> HypergradientCheck:
    """Compare one round's hypergradient with float64 central differences along random directions.

    Everything runs on a float64 copy from the tuner's present state; nothing of the user's is changed.

    Args:
        tuner: the tuner, with a ζ that is a number or "theory".
        directions: how many random directions; each costs eight rounds, and more with per-summand truncation.
        seed: of the directions.

    Example:
        >>> import pactune as pt
        >>> model = torch.nn.Linear(3, 2)
        >>> hyper = pt.WeightDecay(model, init=0.1)
        >>> x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> problem = pt.Problem(model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]),
        ...                      loss=torch.nn.functional.cross_entropy)
        >>> tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=5,
        ...                  outer=torch.optim.SGD(hyper.parameters(), lr=0.1), objective=pt.PACBayes(zeta=0.01))
        >>> pt.check_hypergradient(tuner).passed
        True
    """
    check_type("tuner", tuner, Tuner, "a Tuner")
    check_count("directions", directions, words="≥ 1, a whole number")
    check_seed("seed", seed)
    if tuner.team.ranks > 1:
        raise SettingError("`tuner` must run in one process to be checked; make it without `parallel`")
    plan, lane = _in_double(tuner)
    hyper = clone(plan.trajectory.problem.hyperparameters())
    paths = record_path(plan, lane, hyper)
    gradient = _gradient(plan, hyper, paths)
    probes = [_direction(hyper, Streams(seed), i) for i in range(directions)]
    estimate = torch.stack([dot(gradient, v) for v in probes])
    exact_plan = replace(plan, risk_estimator=Truncated(plan.inner_steps), path_estimator=Windowed(plan.inner_steps))
    here = path_sums(plan, paths, hyper) if plan.trajectory.objective.has_path else torch.zeros(0)
    promised = torch.stack([_difference(plan, paths, here, hyper, v) for v in probes])
    exact = torch.stack([_difference(exact_plan, paths, here, hyper, v) for v in probes])
    promises = tuner.inner.differentiable and not isinstance(tuner.risk_estimator, Implicit)
    error = _relative(estimate, promised) if promises else float("nan")
    return HypergradientCheck(estimate, promised, exact, error, _relative(estimate, exact))


def _in_double(tuner: Tuner) -> tuple[Plan, Lane]:
    """Return plan and chains of the tuner on a float64 copy of its problem."""
    problem = tuner.problem.in_type(torch.float64)
    if not problem.model.training:
        problem.model.train()
    plan, lane = tuner.plan(tuner.zeta), tuner.lane
    world = replace(tuner.world, problem=problem, lane="check")
    states = [_double_state(state) for state in lane.states] if lane.states is not None else None
    twin = replace(lane, world=world, params=_double(lane.params), buffers=_double(lane.buffers), states=states)
    default = plan.trajectory.default_hyper
    trajectory = replace(plan.trajectory, problem=problem, default_hyper=None if default is None else _double(default))
    return replace(plan, trajectory=trajectory), twin


def _gradient(plan: Plan, hyper: Params, paths: list[Path]) -> Params:
    drawn = [path.drawn for path in paths if path.drawn is not None]
    starts = [path.states[0] for path in paths]
    ticks = [[path.ticks[t] for path in paths] for t in range(plan.inner_steps)]
    return run_round(Job(plan, starts, hyper, lambda t: ticks[t], drawn or None)).gradient(plan.zeta)


def _difference(plan: Plan, paths: list[Path], here: Tensor, hyper: Params, v: Params) -> Tensor:
    """Return the central difference along v of what the plan's estimators differentiate."""
    step = STEP * (1.0 + float(norm(hyper)))

    def spread(width: float) -> Tensor:
        up = frozen_objective(plan, paths, here, axpy(width, v, hyper))
        return up - frozen_objective(plan, paths, here, axpy(-width, v, hyper))

    return (8 * spread(step) - spread(2 * step)) / (12 * step)


def _direction(hyper: Params, streams: Streams, index: int) -> Params:
    generator = streams.generator("direction", index)
    drawn = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
        for name, value in hyper.items()
    }
    return scale(1 / norm(drawn), drawn)


def _double(tree: Params) -> Params:
    return {name: value.double() if value.is_floating_point() else value for name, value in tree.items()}


def _double_state(state: InnerState) -> InnerState:
    slots = {slot: _double(values) for slot, values in state.slots.items()}
    return InnerState(_double(state.params), slots, _double(state.buffers), state.step)


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(torch.finfo(b.dtype).tiny))
